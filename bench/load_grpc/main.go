// Command mqload-grpc loads a RocketMQ 5 proxy over gRPC and prints one JSON
// line. README.md lists its modes.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"mqload/stat"
)

const service = "/apache.rocketmq.v2.MessagingService/"

// raw passes message bytes through unchanged.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append((*v.(*[]byte))[:0], b...)
	return nil
}
func (raw) Name() string { return "proto" }

type options struct {
	addr, topic, group, broker, label                 string
	conns, window, batch, size, max, ackEntries, rate int
	warm, dur, patience                               time.Duration
	tls                                               bool
	pids                                              []int
}

var calls atomic.Int64

func (o *options) dial() (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if o.tls {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	return grpc.NewClient("passthrough:///"+o.addr, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(16<<20)),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20))
}

// header is the metadata the official clients send with every call.
func header(ctx context.Context, client string) context.Context {
	n := calls.Add(1)
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(
		"x-mq-client-id", client, "x-mq-language", "GO", "x-mq-client-version", "5.1.0", "x-mq-protocol", "v2",
		"x-mq-date-time", "20260101T000000Z", "x-mq-request-id", fmt.Sprintf("00000000-0000-4000-8000-%012x", n)))
}

func unary(o *options, c *grpc.ClientConn, client, rpc string, req []byte, reply *[]byte) (int, string, error) {
	ctx, cancel := context.WithTimeout(header(context.Background(), client), o.patience)
	defer cancel()
	if err := c.Invoke(ctx, service+rpc, &req, reply); err != nil {
		return 0, "", err
	}
	code, text := status(field(*reply, 1))
	return code, text, nil
}

type tally struct {
	hist              stat.Hist
	msgs, calls, none int64
	codes             map[string]int64
	sample            string
}

func (t *tally) fault(code string, text string) {
	t.codes[code]++
	if t.sample == "" {
		t.sample = text
	}
}

type clock struct{ begin, end int64 }

func (k clock) counts(now int64) bool { return now >= k.begin && now <= k.end }

func run(o *options, r map[string]any, work func(c *grpc.ClientConn, client string, worker int, k clock, t *tally)) error {
	conns := make([]*grpc.ClientConn, o.conns)
	for i := range conns {
		c, err := o.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i] = c
	}
	now := stat.Now()
	k := clock{now + int64(o.warm), now + int64(o.warm+o.dur)}
	n := o.conns * o.window
	ts := make([]*tally, n)
	var wg sync.WaitGroup
	for i := 0; i < n; i++ {
		ts[i] = &tally{codes: map[string]int64{}}
		wg.Add(1)
		go func() {
			defer wg.Done()
			ci := i % o.conns
			work(conns[ci], fmt.Sprintf("bench@%d@%d", os.Getpid(), ci), i, k, ts[i])
		}()
	}
	time.Sleep(time.Duration(k.begin - stat.Now()))
	a := stat.Read(o.pids)
	time.Sleep(time.Duration(k.end - stat.Now()))
	b := stat.Read(o.pids)
	wg.Wait()
	sum := &tally{codes: map[string]int64{}}
	var errs int64
	for _, t := range ts {
		sum.hist.Merge(&t.hist)
		sum.msgs += t.msgs
		sum.calls += t.calls
		sum.none += t.none
		if sum.sample == "" {
			sum.sample = t.sample
		}
		for c, n := range t.codes {
			sum.codes[c] += n
			errs += n
		}
	}
	secs := float64(b.At-a.At) / 1e9
	r["secs"], r["conns"], r["window"], r["tls"] = stat.Round(secs), o.conns, o.window, o.tls
	r["msgs"], r["msgs_per_s"], r["reqs_per_s"] = sum.msgs, stat.Round(float64(sum.msgs)/secs), stat.Round(float64(sum.calls)/secs)
	r["empty"], r["errors"], r["codes"], r["lat_us"] = sum.none, errs, sum.codes, sum.hist.Micros()
	if sum.sample != "" {
		r["error_sample"] = sum.sample
	}
	stat.Between(r, a, b, o.pids)
	return nil
}

func body(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(i*7%26)
	}
	return b
}

func runSend(o *options, r map[string]any) error {
	payload := body(o.size)
	r["size"], r["batch"] = o.size, o.batch
	return run(o, r, func(c *grpc.ClientConn, client string, worker int, k clock, t *tally) {
		var reply []byte
		for i := 0; ; i++ {
			start := stat.Now()
			if start >= k.end {
				return
			}
			id := fmt.Sprintf("01%012X%08X%08X", os.Getpid(), worker, i)
			code, text, err := unary(o, c, client, "SendMessage", sendRequest(o.topic, id, o.batch, payload, time.Now()), &reply)
			now := stat.Now()
			switch {
			case err != nil:
				t.fault("grpc", err.Error())
				time.Sleep(10 * time.Millisecond)
			case code != statusOK:
				t.fault(strconv.Itoa(code), text)
			case k.counts(now):
				t.msgs += int64(o.batch)
				t.calls++
				t.hist.Add(now - start)
			}
		}
	})
}

// receive reads one ReceiveMessage stream to its end.
func receive(o *options, c *grpc.ClientConn, client, group string, poll time.Duration) ([]handle, int, string, error) {
	return receiveEach(o, c, client, group, poll, func([]byte) {})
}

// receiveEach also calls each with the bytes of every message when it arrives.
func receiveEach(o *options, c *grpc.ClientConn, client, group string, poll time.Duration, each func([]byte)) ([]handle, int, string, error) {
	ctx, cancel := context.WithTimeout(header(context.Background(), client), poll+o.patience)
	defer cancel()
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"ReceiveMessage")
	if err != nil {
		return nil, 0, "", err
	}
	req := receiveRequest(group, o.topic, o.broker, o.max, 60*time.Second, poll)
	if err := s.SendMsg(&req); err != nil {
		return nil, 0, "", err
	}
	if err := s.CloseSend(); err != nil {
		return nil, 0, "", err
	}
	var got []handle
	code, text := 0, ""
	var m []byte
	for {
		if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
			return got, code, text, nil
		} else if err != nil {
			return got, code, text, err
		}
		if st := field(m, 1); st != nil {
			code, text = status(st)
		} else if msg := field(m, 2); msg != nil {
			each(msg)
			sys := field(msg, 3)
			got = append(got, handle{string(field(sys, 3)), string(field(sys, 12))})
		}
	}
}

// announce opens the client's telemetry stream and leaves it open for the run.
func announce(o *options, c *grpc.ClientConn, client string) error {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(o.warm+o.dur+o.patience, cancel)
	_, err := open(ctx, o, c, client)
	return err
}

// open opens a client's telemetry stream, and returns it when its settings are answered.
func open(ctx context.Context, o *options, c *grpc.ClientConn, client string) (grpc.ClientStream, error) {
	s, err := c.NewStream(header(ctx, client), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, service+"Telemetry")
	if err != nil {
		return nil, err
	}
	cmd := settings(o.group, o.topic)
	if err := s.SendMsg(&cmd); err != nil {
		return nil, err
	}
	var m []byte
	return s, s.RecvMsg(&m)
}

// runPrime makes the group known: the proxy starts a new group at the newest
// message, so a group must have received once before the topic is filled.
func runPrime(o *options, r map[string]any) error {
	c, err := o.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := announce(o, c, "bench@prime"); err != nil {
		return err
	}
	hs, code, text, err := receive(o, c, "bench@prime", o.group, 5*time.Second)
	if err == nil && code != statusOK && code != statusNotFound {
		err = fmt.Errorf("receive answered %d: %s", code, text)
	}
	r["msgs"] = len(hs)
	return err
}

func runReceive(o *options, r map[string]any) error {
	group := o.group
	r["ack_entries"], r["lat_of"] = o.ackEntries, "receive until all its acks are answered"
	var announced sync.Map
	return run(o, r, func(c *grpc.ClientConn, client string, worker int, k clock, t *tally) {
		once, _ := announced.LoadOrStore(client, &sync.Once{})
		once.(*sync.Once).Do(func() {
			if err := announce(o, c, client); err != nil {
				t.fault("telemetry", err.Error())
			}
		})
		var reply []byte
		for {
			start := stat.Now()
			if start >= k.end {
				return
			}
			hs, code, text, err := receive(o, c, client, group, 5*time.Second)
			if err != nil {
				t.fault("grpc", err.Error())
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if len(hs) == 0 {
				if code != statusOK && code != statusNotFound {
					t.fault(strconv.Itoa(code), text)
				}
				t.none++
				continue
			}
			for i := 0; i < len(hs); i += o.ackEntries {
				part := hs[i:min(i+o.ackEntries, len(hs))]
				code, text, err := unary(o, c, client, "AckMessage", ackRequest(group, o.topic, part), &reply)
				if err != nil {
					t.fault("grpc", err.Error())
				} else if code != statusOK {
					t.fault(strconv.Itoa(code), text)
				}
			}
			now := stat.Now()
			if k.counts(now) {
				t.msgs += int64(len(hs))
				t.calls++
				t.hist.Add(now - start)
			}
		}
	})
}

// runWait repeats a request until it succeeds.
func runWait(o *options, r map[string]any) error {
	began := stat.Now()
	var last string
	for n := 1; stat.Now() < began+int64(o.dur); n++ {
		c, err := o.dial()
		if err != nil {
			return err
		}
		var reply []byte
		short := *o
		short.patience = 2 * time.Second
		code, text, err := unary(&short, c, "bench@wait", "QueryRoute", route(o.topic), &reply)
		c.Close()
		if err == nil && code == statusOK {
			r["tries"], r["waited_s"], r["at_unix_ms"] = n, float64((stat.Now()-began)/1e6)/1e3, time.Now().UnixMilli()
			return nil
		}
		last = fmt.Sprint(code, " ", text, " ", err)
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("no success in %v: %s", o.dur, last)
}

var modes = map[string]func(*options, map[string]any) error{"send": runSend, "receive": runReceive, "prime": runPrime,
	"wait": runWait, "e2e": runE2E, "idle": runIdle}

func main() {
	if len(os.Args) < 2 || modes[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: mqload-grpc send|receive|prime|wait|e2e|idle [flags]; mqload-grpc MODE -h lists the flags")
		os.Exit(2)
	}
	mode := os.Args[1]
	var o options
	var pids string
	f := flag.NewFlagSet(mode, flag.ExitOnError)
	f.StringVar(&o.addr, "addr", "127.0.0.1:8081", "proxy")
	f.StringVar(&o.topic, "topic", "mqgrpc", "topic; must exist")
	f.StringVar(&o.group, "group", "mqgrpc", "consumer group")
	f.StringVar(&o.broker, "broker", "broker-a", "broker name")
	f.StringVar(&o.label, "label", "", "copied into the report")
	f.StringVar(&pids, "pids", "", "server process ids for CPU and memory, comma-separated")
	f.IntVar(&o.conns, "conns", 1, "connections")
	f.IntVar(&o.window, "window", 64, "calls in flight on each connection")
	f.IntVar(&o.batch, "batch", 1, "messages per SendMessage")
	f.IntVar(&o.size, "size", 1024, "body bytes")
	f.IntVar(&o.rate, "rate", 1000, "e2e: messages per second")
	f.IntVar(&o.max, "max", 32, "receive: batch_size")
	f.IntVar(&o.ackEntries, "ackentries", 1, "receive: entries per AckMessage (official clients send 1)")
	f.DurationVar(&o.warm, "warm", 10*time.Second, "warm-up, not counted")
	f.DurationVar(&o.dur, "dur", 15*time.Second, "measured time")
	f.DurationVar(&o.patience, "patience", 10*time.Second, "deadline of one call")
	f.BoolVar(&o.tls, "tls", false, "TLS, certificate not verified")
	f.Parse(os.Args[2:])
	report := map[string]any{"tool": "mqload-grpc", "mode": mode, "addr": o.addr}
	if o.label != "" {
		report["label"] = o.label
	}
	var err error
	o.pids, err = stat.ParsePIDs(pids)
	if err == nil && (o.conns < 1 || o.window < 1 || o.batch < 1 || o.size < 1 || o.max < 1 || o.ackEntries < 1 || o.rate < 1) {
		err = errors.New("-conns, -window, -batch, -size, -max, -ackentries and -rate must be at least 1")
	}
	if err == nil {
		stat.Watchdog(o.warm+o.dur+4*o.patience+30*time.Second, report)
		err = modes[mode](&o, report)
	}
	if err != nil {
		report["error"] = err.Error()
		stat.Print(report)
		os.Exit(1)
	}
	stat.Print(report)
}
