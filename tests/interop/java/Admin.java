import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The official `mqadmin`, many commands a process, because a JVM takes seconds to start. Each line
 * read is one command, its words divided by tabs; it is answered by two lines, "out" and "err", each
 * with what the command printed there, in base64.
 */
public final class Admin extends MQAdminStartup {
    private Admin() { }

    public static void main(String[] args) {
        try {
            serve();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void serve() throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            String[] words = line.split("\t", -1);
            SUB_COMMANDS.clear(); // they keep the connections of their last run, which are closed
            Thread command = new Thread(() -> main0(words, null));
            command.setUncaughtExceptionHandler((thread, error) -> error.printStackTrace());
            command.start();
            end(command);
            answers.println("out " + Base64.getEncoder().encodeToString(out.toByteArray()));
            answers.println("err " + Base64.getEncoder().encodeToString(err.toByteArray()));
            answers.flush();
        }
    }

    /**
     * Returns when the command has ended. At its end it often waits 3 s for a thread of its connections,
     * which looks that seldom whether it should stop; that one is woken.
     */
    private static void end(Thread command) throws InterruptedException {
        for (command.join(100); command.isAlive(); command.join(100)) {
            for (StackTraceElement frame : command.getStackTrace()) {
                if (frame.getMethodName().equals("shutdown") && frame.getClassName().endsWith(".ServiceThread")) {
                    wake("NettyEventExecutor");
                }
            }
        }
    }

    private static void wake(String name) {
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().equals(name)) {
                thread.interrupt();
            }
        }
    }
}
