package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"mqload/stat"
)

// tongue is the part of another message system's protocol that acknowledged
// appends need.
type tongue interface {
	// hello is the first data on a connection; prepare creates topics, once.
	hello() []byte
	prepare(c net.Conn, o *options) error
	// request appends one append of body to out.
	request(out []byte, slot, queue int, body []byte) []byte
	// reply reads one answer from buf: its length, 0 if it is incomplete, and
	// its slot, -1 for data that is no answer, -2 for the oldest in flight.
	reply(buf []byte) (length, slot int, err error)
}

const (
	noAnswer = -1
	oldest   = -2
)

var errRefused = errors.New("refused")

func runRedis(o *options, r map[string]any) error {
	return runOther(o, r, func(int) tongue { return &redis{topic: o.topic} })
}

func runNats(o *options, r map[string]any) error {
	return runOther(o, r, func(id int) tongue { return &nats{topic: o.topic, inbox: "_INBOX.mqload" + itoa(id) + "."} })
}

// redis appends with XADD to one stream for each queue.
type redis struct{ topic string }

func (t *redis) hello() []byte                    { return nil }
func (t *redis) prepare(net.Conn, *options) error { return nil }

func (t *redis) request(out []byte, _, queue int, body []byte) []byte {
	key := t.topic + itoa(queue)
	out = fmt.Appendf(out, "*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nb\r\n$%d\r\n", len(key), key, len(body))
	return append(append(out, body...), '\r', '\n')
}

func (t *redis) reply(buf []byte) (int, int, error) {
	end := bytes.Index(buf, []byte("\r\n"))
	if end < 0 {
		return 0, noAnswer, nil
	}
	if buf[0] != '$' {
		return 0, noAnswer, fmt.Errorf("%w: %s", errRefused, buf[:end])
	}
	n, err := strconv.Atoi(string(buf[1:end]))
	if err != nil {
		return 0, noAnswer, err
	}
	if whole := end + 2 + n + 2; len(buf) >= whole {
		return whole, oldest, nil
	}
	return 0, noAnswer, nil
}

// nats publishes to one stream of JetStream and takes its acknowledgments.
type nats struct{ topic, inbox string }

func (t *nats) hello() []byte {
	return fmt.Appendf(nil, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true}\r\nSUB %s* 1\r\n", t.inbox)
}

func (t *nats) prepare(c net.Conn, o *options) error {
	body := fmt.Sprintf(`{"name":%q,"subjects":["%s.*"],"storage":"file","retention":"limits","num_replicas":1}`, t.topic, t.topic)
	out := fmt.Appendf(t.hello(), "PUB $JS.API.STREAM.CREATE.%s %ssetup %d\r\n%s\r\n", t.topic, t.inbox, len(body), body)
	c.SetDeadline(time.Now().Add(o.patience))
	if _, err := c.Write(out); err != nil {
		return err
	}
	var got []byte
	for buf := make([]byte, 4096); !bytes.Contains(got, []byte("}\r\n")) || !bytes.Contains(got, []byte("MSG ")); {
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		got = append(got, buf[:n]...)
	}
	if bytes.Contains(got, []byte(`"error"`)) && !bytes.Contains(got, []byte("already in use")) {
		return fmt.Errorf("%w: %s", errRefused, got)
	}
	return nil
}

func (t *nats) request(out []byte, slot, queue int, body []byte) []byte {
	out = fmt.Appendf(out, "PUB %s.%d %s%d %d\r\n", t.topic, queue, t.inbox, slot, len(body))
	return append(append(out, body...), '\r', '\n')
}

func (t *nats) reply(buf []byte) (int, int, error) {
	end := bytes.Index(buf, []byte("\r\n"))
	if end < 0 {
		return 0, noAnswer, nil
	}
	words := strings.Fields(string(buf[:end]))
	if len(words) == 0 || words[0] != "MSG" && words[0] != "HMSG" {
		if strings.HasPrefix(string(buf), "-ERR") {
			return 0, noAnswer, fmt.Errorf("%w: %s", errRefused, buf[:end])
		}
		return end + 2, noAnswer, nil // INFO, PING, +OK
	}
	n, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return 0, noAnswer, err
	}
	whole := end + 2 + n + 2
	if len(buf) < whole {
		return 0, noAnswer, nil
	}
	if said := buf[end+2 : whole]; words[0] == "HMSG" || bytes.Contains(said, []byte(`"error"`)) {
		return 0, noAnswer, fmt.Errorf("%w: %s", errRefused, said)
	}
	slot, err := strconv.Atoi(words[1][strings.LastIndexByte(words[1], '.')+1:])
	return whole, slot, err
}

// talk keeps `window` appends in flight on one connection until the run ends.
func talk(o *options, t tongue, id int, r *rhythm, into *tally) error {
	c, err := net.DialTimeout("tcp", o.addr, dialTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	out := t.hello()
	body := fill(o.size)
	sentAt := make([]int64, o.window)
	queue, inflight, next := id%o.queues, 0, 0
	issue := func(slot int, now int64) {
		queue = (queue + 1) % o.queues
		sentAt[slot] = now
		out = t.request(out, slot, queue, body)
		inflight++
	}
	for slot := range sentAt {
		issue(slot, stat.Now())
	}
	buf := make([]byte, 0, 1<<17)
	for inflight > 0 {
		c.SetDeadline(time.Now().Add(o.patience))
		if _, err := c.Write(out); err != nil {
			return err
		}
		out = out[:0]
		n, err := c.Read(buf[len(buf):cap(buf)])
		if err != nil {
			return err
		}
		buf = buf[:len(buf)+n]
		rest := buf
		now := stat.Now()
		for {
			length, slot, err := t.reply(rest)
			if err != nil {
				return err
			}
			if length == 0 {
				break
			}
			rest = rest[length:]
			if slot == noAnswer {
				continue
			}
			if slot == oldest {
				slot = next
				next = (next + 1) % o.window
			}
			inflight--
			if now >= r.begin && now <= r.end {
				into.msgs++
				into.calls++
				into.hist.Add(now - sentAt[slot])
			}
			if now < r.end {
				issue(slot, now)
			}
		}
		copy(buf[:cap(buf)], rest)
		buf = buf[:len(rest)]
	}
	return nil
}

func runOther(o *options, r map[string]any, speak func(int) tongue) error {
	if o.batch > 1 {
		return errors.New("only remoting has batches")
	}
	c, err := net.DialTimeout("tcp", o.addr, dialTimeout)
	if err != nil {
		return err
	}
	err = speak(-1).prepare(c, o)
	c.Close()
	if err != nil {
		return err
	}
	ts := make([]*tally, o.conns)
	rh := o.rhythm()
	a, b, err := rh.measure(o, o.conns, func(i int) error {
		ts[i] = newTally()
		return talk(o, speak(i), i, rh, ts[i])
	}, false)
	if err != nil {
		return err
	}
	r["size"] = o.size
	finish(r, ts, a, b, o)
	return nil
}
