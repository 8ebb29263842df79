package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"mqload/stat"
)

// runE2E sends at a fixed rate on one connection and measures from just before
// each send to the receipt of its message by long polls on another connection.
func runE2E(o *options, r map[string]any) error {
	sender, err := o.dial()
	if err != nil {
		return err
	}
	defer sender.Close()
	receiver, err := o.dial()
	if err != nil {
		return err
	}
	defer receiver.Close()
	client := "bench@e2e"
	if err := announce(o, receiver, client); err != nil {
		return err
	}
	begin := stat.Now() + int64(o.warm)
	k := clock{begin, begin + int64(o.dur)}
	run := uint64(time.Now().UnixNano())
	var mu sync.Mutex
	var hist stat.Hist
	var received, sent, failed atomic.Int64
	var sample atomic.Value
	fault := func(text string) {
		failed.Add(1)
		sample.CompareAndSwap(nil, text)
	}
	var done atomic.Bool
	var receivers, sends sync.WaitGroup
	for i := 0; i < o.window; i++ {
		receivers.Add(1)
		go func() {
			defer receivers.Done()
			var reply []byte
			for !done.Load() {
				hs, code, text, err := receiveEach(o, receiver, client, o.group, time.Second, func(m []byte) {
					body := field(m, 4)
					if len(body) < 16 || binary.BigEndian.Uint64(body[8:]) != run {
						return
					}
					at := int64(binary.BigEndian.Uint64(body))
					if k.counts(at) {
						received.Add(1)
						mu.Lock()
						hist.Add(stat.Now() - at)
						mu.Unlock()
					}
				})
				if err == nil && len(hs) == 0 && code != statusOK && code != statusNotFound {
					err = fmt.Errorf("receive answered %d: %s", code, text)
				}
				if err == nil && len(hs) > 0 {
					_, _, err = unary(o, receiver, client, "AckMessage", ackRequest(o.group, o.topic, hs), &reply)
				}
				if err != nil {
					fault(err.Error())
					time.Sleep(10 * time.Millisecond)
				}
			}
		}()
	}
	time.Sleep(500 * time.Millisecond)
	var a, b stat.Usage
	gap := int64(time.Second) / int64(o.rate)
	start := stat.Now()
	for i := int64(0); ; i++ {
		due := start + i*gap
		if due >= k.end {
			break
		}
		time.Sleep(time.Duration(due - stat.Now()))
		now := stat.Now()
		if a.At == 0 && now >= k.begin {
			a = stat.Read(o.pids)
		}
		payload := body(o.size)
		binary.BigEndian.PutUint64(payload, uint64(now))
		binary.BigEndian.PutUint64(payload[8:], run)
		counted := k.counts(now)
		sends.Add(1)
		go func() {
			defer sends.Done()
			var reply []byte
			id := fmt.Sprintf("01%016X%016X", run, i)
			code, text, err := unary(o, sender, "bench@send", "SendMessage", sendRequest(o.topic, id, 1, payload, time.Now()), &reply)
			if err == nil && code != statusOK {
				err = fmt.Errorf("send answered %d: %s", code, text)
			}
			if err != nil {
				fault(err.Error())
			} else if counted {
				sent.Add(1)
			}
		}()
	}
	b = stat.Read(o.pids)
	sends.Wait()
	for i := 0; i < 300 && received.Load() < sent.Load(); i++ {
		time.Sleep(10 * time.Millisecond)
	}
	done.Store(true)
	receivers.Wait()
	r["rate"], r["size"] = o.rate, o.size
	r["msgs"], r["sent"], r["errors"], r["lat_us"] = received.Load(), sent.Load(), failed.Load(), hist.Micros()
	if text := sample.Load(); text != nil {
		r["error_sample"] = text
	}
	stat.Between(r, a, b, o.pids)
	if received.Load() < sent.Load() {
		return fmt.Errorf("%d of %d messages did not arrive", sent.Load()-received.Load(), sent.Load())
	}
	return nil
}

// runIdle opens -conns connections with a telemetry stream each, and keeps them
// without a call for -dur. The report has the server's memory before and with them.
func runIdle(o *options, r map[string]any) error {
	before := stat.Read(o.pids)
	conns := make([]*grpc.ClientConn, o.conns)
	streams := make([]grpc.ClientStream, o.conns)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	work := make(chan int)
	errs := make(chan error, o.conns)
	var wg sync.WaitGroup
	for range 32 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range work {
				var err error
				if conns[i], err = o.dial(); err == nil {
					streams[i], err = open(ctx, o, conns[i], fmt.Sprintf("bench@idle@%d", i))
				}
				if err != nil {
					errs <- err
				}
			}
		}()
	}
	for i := range o.conns {
		work <- i
	}
	close(work)
	wg.Wait()
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	select {
	case err := <-errs:
		return err
	default:
	}
	a := stat.Read(o.pids)
	time.Sleep(o.dur)
	b := stat.Read(o.pids)
	var broken atomic.Int64
	for _, c := range conns {
		if c.GetState().String() != "READY" {
			broken.Add(1)
		}
	}
	r["conns"], r["errors"] = o.conns, broken.Load()
	r["rss_before_mb"], r["rss_mb"] = resident(before), resident(b)
	stat.Between(r, a, b, o.pids)
	if broken.Load() > 0 {
		return errors.New("connections were closed while idle")
	}
	return nil
}

func resident(u stat.Usage) float64 {
	sum := 0.0
	for _, mb := range u.RSS {
		sum += mb
	}
	return stat.Round(sum)
}
