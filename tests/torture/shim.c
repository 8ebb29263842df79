/* Makes the n-th call that changes a file below a store fail, or write only a part.
 *
 * The library is preloaded into a broker. Test and broker map a small control file, named by
 * SHIM_CONTROL; SHIM_ROOT is the store. The test arms the shim while the broker runs:
 *
 *     calls    bit set of the calls to count: see CALLS in shim.py
 *     nth      number of the call to fail, from 1, counted since `armed` became 1
 *     error    errno of the failure; 0: a short write of half the bytes
 *     armed    set to 1 by the test, to 2 when the call has failed
 *     counted  calls so far
 *     hit_ns   CLOCK_MONOTONIC at the failed call
 *     hit_call kind of the failed call
 *     path     path of its file, below the store
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t calls, nth, error, armed, counted, hit_call;
    int64_t hit_ns;
    char path[256];
};

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, OPEN = 8, RENAME = 16, UNLINK = 32 };

static struct control *control;
static const char *root;
static size_t root_size;

__attribute__((constructor)) static void start(void)
{
    const char *name = getenv("SHIM_CONTROL");
    root = getenv("SHIM_ROOT");
    if (!name || !root)
        return;
    root_size = strlen(root);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        control = at;
    close(fd);
}

static __thread char seen[PATH_MAX];

static int below(const char *path)
{
    if (path != seen)
        snprintf(seen, sizeof seen, "%s", path);
    return !strncmp(path, root, root_size) && (!path[root_size] || path[root_size] == '/');
}

static int fd_below(int fd)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, seen, sizeof seen - 1);
    if (size <= 0)
        return 0;
    seen[size] = 0;
    return below(seen);
}

/* Returns whether this call is the one to fail. */
static int hits(int call, int is_below)
{
    if (!is_below || !(control->calls & call))
        return 0;
    if (__atomic_add_fetch(&control->counted, 1, __ATOMIC_SEQ_CST) != control->nth)
        return 0;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    control->hit_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    control->hit_call = call;
    snprintf(control->path, sizeof control->path, "%.255s", seen[root_size] ? seen + root_size + 1 : "");
    __atomic_store_n(&control->armed, 2, __ATOMIC_SEQ_CST);
    return 1;
}

static int is_armed(void)
{
    return control && __atomic_load_n(&control->armed, __ATOMIC_SEQ_CST) == 1;
}

#define REAL(result, name, ...)                            \
    static result (*real)(__VA_ARGS__);                    \
    if (!real)                                             \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define FAIL_IF(call, is_below)                            \
    if (is_armed() && hits(call, is_below)) {              \
        errno = control->error ? control->error : EIO;     \
        return -1;                                         \
    }

/* Writes half of the bytes and fails with the error, like a real disk with ENOSPC; EINTR writes
 * none. Without an error, returns a short write. */
static ssize_t hit_write(int fd, const struct iovec *parts, int count, off_t offset)
{
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += parts[i].iov_len;
    char *all = malloc(size ? size : 1), *end = all;
    for (int i = 0; i < count; i++) {
        memcpy(end, parts[i].iov_base, parts[i].iov_len);
        end += parts[i].iov_len;
    }
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off_t);
    int error = control->error;
    ssize_t written = 0;
    if (error != EINTR && size > 1)
        written = real(fd, all, size / 2, offset);
    free(all);
    if (!error)
        return written;
    errno = error;
    return -1;
}

#define WRITEV(name)                                                                     \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t offset)             \
    {                                                                                    \
        REAL(ssize_t, #name, int, const struct iovec *, int, off_t);                     \
        if (is_armed() && hits(WRITE, fd_below(fd)))                                     \
            return hit_write(fd, parts, count, offset);                                  \
        return real(fd, parts, count, offset);                                           \
    }
WRITEV(pwritev)
WRITEV(pwritev64)

#define WRITEV2(name)                                                                    \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t offset, int flags)  \
    {                                                                                    \
        REAL(ssize_t, #name, int, const struct iovec *, int, off_t, int);                \
        if (is_armed() && hits(WRITE, fd_below(fd)))                                     \
            return hit_write(fd, parts, count, offset);                                  \
        return real(fd, parts, count, offset, flags);                                    \
    }
WRITEV2(pwritev2)
WRITEV2(pwritev64v2)

#define PWRITE(name)                                                                     \
    ssize_t name(int fd, const void *data, size_t size, off_t offset)                    \
    {                                                                                    \
        REAL(ssize_t, #name, int, const void *, size_t, off_t);                          \
        if (is_armed() && hits(WRITE, fd_below(fd))) {                                   \
            struct iovec part = {(void *)data, size};                                    \
            return hit_write(fd, &part, 1, offset);                                      \
        }                                                                                \
        return real(fd, data, size, offset);                                             \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define OF_FD(name, call)                                                                \
    int name(int fd)                                                                     \
    {                                                                                    \
        REAL(int, #name, int);                                                           \
        FAIL_IF(call, fd_below(fd))                                                      \
        return real(fd);                                                                 \
    }
OF_FD(fsync, SYNC)
OF_FD(fdatasync, SYNC)

#define RESIZE(name)                                                                     \
    int name(int fd, off_t size)                                                         \
    {                                                                                    \
        REAL(int, #name, int, off_t);                                                    \
        FAIL_IF(TRUNCATE, fd_below(fd))                                                  \
        return real(fd, size);                                                           \
    }
RESIZE(ftruncate)
RESIZE(ftruncate64)

#define MODE(flags)                                                                      \
    mode_t mode = 0;                                                                     \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                             \
        va_list rest;                                                                    \
        va_start(rest, flags);                                                           \
        mode = va_arg(rest, mode_t);                                                     \
        va_end(rest);                                                                    \
    }

#define OPENS(name)                                                                      \
    int name(const char *path, int flags, ...)                                           \
    {                                                                                    \
        REAL(int, #name, const char *, int, mode_t);                                     \
        MODE(flags)                                                                      \
        FAIL_IF(OPEN, (flags & O_CREAT) && below(path))                                  \
        return real(path, flags, mode);                                                  \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                   \
    int name(int directory, const char *path, int flags, ...)                            \
    {                                                                                    \
        REAL(int, #name, int, const char *, int, mode_t);                                \
        MODE(flags)                                                                      \
        FAIL_IF(OPEN, (flags & O_CREAT) && below(path))                                  \
        return real(directory, path, flags, mode);                                       \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

int rename(const char *from, const char *to)
{
    REAL(int, "rename", const char *, const char *);
    FAIL_IF(RENAME, below(from))
    return real(from, to);
}

int unlink(const char *path)
{
    REAL(int, "unlink", const char *);
    FAIL_IF(UNLINK, below(path))
    return real(path);
}
