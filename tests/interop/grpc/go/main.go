// Uses each feature of the client, and prints what it saw: ENDPOINTS plain|tls GROUP. With more
// arguments: `exchange TOPIC COUNT` sends four messages and prints COUNT that it receives;
// `recover TOPIC` sends and receives while its server restarts; `orphan TOPIC` sends a half message,
// and leaves its transaction open; `check TOPIC` prints what it checks and receives.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const limit = 60 * time.Second

var run string

var all = rmq.SUB_ALL

// names is a set of names, in the order of their first addition.
type names struct {
	lock  sync.Mutex
	order []string
}

func (n *names) add(name string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, old := range n.order {
		if old == name {
			return
		}
	}
	n.order = append(n.order, name)
}

func (n *names) list() []string {
	n.lock.Lock()
	defer n.lock.Unlock()
	return append([]string{}, n.order...)
}

func (n *names) text() string {
	return strings.Join(n.list(), ",")
}

func (n *names) sorted() string {
	list := n.list()
	sort.Strings(list)
	return strings.Join(list, ",")
}

func (n *names) containsAll(others []string) bool {
	own := map[string]bool{}
	for _, name := range n.list() {
		own[name] = true
	}
	for _, name := range others {
		if !own[name] {
			return false
		}
	}
	return true
}

func main() {
	rmq.EnableSsl = os.Args[2] == "tls"
	rmq.ResetLogger()
	run = os.Args[3]
	mode := ""
	if len(os.Args) > 4 {
		mode = os.Args[4]
	}
	switch mode {
	case "exchange":
		count, err := strconv.Atoi(os.Args[6])
		check(err)
		exchange(os.Args[5], count)
	case "recover":
		recoverFrom(os.Args[5])
	case "orphan":
		orphan(os.Args[5])
	case "check":
		checkOrphan(os.Args[5])
	default:
		useFeatures()
	}
	os.Exit(0) // the stop of a push consumer would wait for its receives
}

func useFeatures() {
	checked := &names{}
	producer := checkingProducer(func(message *rmq.MessageView) rmq.TransactionResolution {
		note(checked, message)
		return rmq.COMMIT
	}, "normal", "fifo", "delay", "transaction", "priority")
	sendByPriority(producer)
	sendNormal(producer)
	sendOrdered(producer)
	features := []func() string{
		receiveByPriority, receiveByTag, receiveByQuery, pushAny, pushInOrder,
		func() string { return delayAndRecall(producer) },
		func() string { return endTransactions(producer, checked) },
		changeInvisibleDuration,
		func() string { return fail("dead", "normal") },
		func() string { return fail("strict", "fifo") },
	}
	lines := make(chan string)
	for _, feature := range features {
		go func() { lines <- feature() }()
	}
	for range features {
		fmt.Println(<-lines)
	}
	check(producer.GracefulStop())
}

func sendByPriority(producer rmq.Producer) {
	for _, priority := range []int32{1, 3, 2} {
		one := message("priority", fmt.Sprint(priority))
		check(one.SetPriority(priority))
		send(producer, one)
	}
}

func sendNormal(producer rmq.Producer) {
	for number := 0; number < 8; number++ {
		one := message("normal", fmt.Sprintf("normal-%d", number))
		one.SetTag([]string{"even", "odd"}[number%2])
		one.SetKeys("key")
		one.AddProperty("number", strconv.Itoa(number))
		send(producer, one)
	}
	for _, name := range []string{"again", "dead"} {
		one := message("normal", name)
		one.SetTag(name)
		send(producer, one)
	}
}

func sendOrdered(producer rmq.Producer) {
	for number := 0; number < 8; number++ {
		one := message("fifo", fmt.Sprintf("fifo-%d", number))
		one.SetTag("all")
		one.SetMessageGroup(run)
		send(producer, one)
	}
	one := message("fifo", "strict")
	one.SetTag("strict")
	one.SetMessageGroup(run)
	send(producer, one)
}

// receiveByPriority returns names, for a received message of this client has no priority.
func receiveByPriority() string {
	return "prioritized " + receive("-priority", "priority", all, 3).text()
}

func receiveByTag() string {
	return "tagged " + receive("", "normal", rmq.NewFilterExpression("even"), 4).sorted()
}

func receiveByQuery() string {
	query := rmq.NewFilterExpressionWithType("number > 3", rmq.SQL92)
	return "filtered " + receive("-sql", "normal", query, 4).sorted()
}

func pushAny() string {
	return "pushed " + consume("-push", "normal", "even || odd").sorted()
}

func pushInOrder() string {
	return "ordered " + consume("-ordered", "fifo", "all").text()
}

func delayAndRecall(producer rmq.Producer) string {
	now := time.Now()
	recalled := message("delay", "recalled")
	recalled.SetDelayTimestamp(now.Add(3 * time.Second))
	handle := send(producer, recalled).RecallHandle
	delayed := message("delay", "delayed")
	delayed.SetDelayTimestamp(now.Add(4 * time.Second))
	send(producer, delayed)
	_, err := producer.Recall(context.Background(), "delay", handle)
	check(err)
	received := receive("-delay", "delay", all, 1)
	if time.Since(now) < 3900*time.Millisecond {
		return "delayed early"
	}
	return "delayed " + received.sorted()
}

func endTransactions(producer rmq.Producer, checked *names) string {
	check(begin(producer, "transaction", "committed").Commit())
	check(begin(producer, "transaction", "rolled-back").RollBack())
	begin(producer, "transaction", "orphaned")
	ended := receive("-ended", "transaction", all, 2).sorted()
	return "received " + ended + "\nchecked " + checked.sorted()
}

func begin(producer rmq.Producer, topic string, name string) rmq.Transaction {
	transaction := producer.BeginTransaction()
	_, err := producer.SendWithTransaction(context.Background(), message(topic, name), transaction)
	check(err)
	return transaction
}

// changeInvisibleDuration makes a message visible long before its time; returns the numbers of its
// deliveries.
func changeInvisibleDuration() string {
	attempts := &names{}
	consumer := simpleConsumer("-changed", "normal", rmq.NewFilterExpression("again"))
	for end := time.Now().Add(limit); len(attempts.list()) < 2 && time.Now().Before(end); {
		messages, _ := consumer.Receive(context.Background(), 16, 5*time.Minute)
		for _, message := range messages {
			if _, isOurs := name(message); !isOurs {
				check(consumer.Ack(context.Background(), message))
				continue
			}
			attempts.add(fmt.Sprint(message.GetDeliveryAttempt()))
			if len(attempts.list()) == 1 {
				check(consumer.ChangeInvisibleDuration(message, time.Second))
			} else {
				check(consumer.Ack(context.Background(), message))
			}
		}
	}
	check(consumer.GracefulStop())
	return "again " + attempts.text()
}

// fail fails a message until it is a dead letter; returns the numbers of its deliveries and the letter.
func fail(wanted string, topic string) string {
	attempts := &names{}
	push("-"+wanted, topic, wanted, func(message *rmq.MessageView) rmq.ConsumerResult {
		if _, isOurs := name(message); !isOurs {
			return rmq.SUCCESS
		}
		attempts.add(fmt.Sprint(message.GetDeliveryAttempt()))
		return rmq.FAILURE
	})
	letters := "%DLQ%" + run + "-" + wanted
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		consumer, err := rmq.NewSimpleConsumer(config("-letters"), subscription(letters, all)...)
		check(err)
		if consumer.Start() != nil { // the first dead letter creates the topic
			continue
		}
		letter := receiveFrom(consumer, 1)
		return wanted + " " + attempts.sorted() + "," + letter.sorted()
	}
	return wanted + " " + attempts.sorted()
}

func exchange(topic string, count int) {
	producer := topicProducer(topic)
	consumer := simpleConsumer("", topic, all)
	for number := 0; number < 4; number++ {
		send(producer, message(topic, fmt.Sprintf("go-%d", number)))
	}
	bodies := &names{}
	for end := time.Now().Add(limit); len(bodies.list()) < count && time.Now().Before(end); {
		messages, _ := consumer.Receive(context.Background(), 16, limit)
		for _, message := range messages {
			bodies.add(string(message.GetBody()))
			check(consumer.Ack(context.Background(), message))
		}
	}
	fmt.Println("exchanged " + bodies.sorted())
}

// recoverFrom sends until eight sends succeed after a line of input; all that succeeded must arrive. If
// the server has lost the settings of the client, it sends them again only every 5 minutes.
func recoverFrom(topic string) {
	pushed, received, sent := &names{}, &names{}, []string{}
	push("-push", topic, "*", func(message *rmq.MessageView) rmq.ConsumerResult {
		note(pushed, message)
		return rmq.SUCCESS
	})
	consumer := simpleConsumer("", topic, all)
	go func() {
		for {
			messages, err := consumer.Receive(context.Background(), 16, 15*time.Second)
			for _, message := range messages {
				note(received, message)
				consumer.Ack(context.Background(), message) // else it comes again
			}
			if err != nil {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	restarted := make(chan bool, 1)
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		restarted <- true
	}()
	producer := topicProducer(topic)
	isReady, isBack := false, false
	for number, after := 0, 0; after < 8; number++ {
		select {
		case isBack = <-restarted:
		default:
		}
		if _, err := producer.Send(context.Background(), message(topic, strconv.Itoa(number))); err == nil {
			sent = append(sent, strconv.Itoa(number))
			if isBack {
				after++
			}
		}
		if !isReady && len(pushed.list()) > 0 && len(received.list()) > 0 {
			isReady = true
			fmt.Println("ready")
		}
		time.Sleep(100 * time.Millisecond)
	}
	for end := time.Now().Add(6 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if pushed.containsAll(sent) && received.containsAll(sent) {
			fmt.Println("recovered")
			return
		}
	}
	fmt.Printf("of %d came %d and %d\n", len(sent), len(pushed.list()), len(received.list()))
}

func orphan(topic string) {
	producer := checkingProducer(func(*rmq.MessageView) rmq.TransactionResolution {
		return rmq.UNKNOWN
	}, topic)
	begin(producer, topic, "orphan")
	fmt.Println("sent")
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func checkOrphan(topic string) {
	checked := &names{}
	producer := checkingProducer(func(message *rmq.MessageView) rmq.TransactionResolution {
		note(checked, message)
		return rmq.COMMIT
	}, topic)
	received := receive("-heirs", topic, all, 1).sorted()
	fmt.Println("received " + received + "\nchecked " + checked.sorted())
	check(producer.GracefulStop())
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func config(suffix string) *rmq.Config {
	return &rmq.Config{
		Endpoint:      os.Args[1],
		ConsumerGroup: run + suffix,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func topicProducer(topic string) rmq.Producer {
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	return producer
}

func checkingProducer(
	checker func(*rmq.MessageView) rmq.TransactionResolution, topics ...string,
) rmq.Producer {
	producer, err := rmq.NewProducer(config(""), rmq.WithTopics(topics...),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: checker}))
	check(err)
	check(producer.Start())
	return producer
}

func subscription(topic string, filter *rmq.FilterExpression) []rmq.SimpleConsumerOption {
	return []rmq.SimpleConsumerOption{
		rmq.WithSimpleAwaitDuration(5 * time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: filter}),
	}
}

func simpleConsumer(suffix string, topic string, filter *rmq.FilterExpression) rmq.SimpleConsumer {
	consumer, err := rmq.NewSimpleConsumer(config(suffix), subscription(topic, filter)...)
	check(err)
	check(consumer.Start())
	return consumer
}

func push(suffix string, topic string, tags string, listener func(*rmq.MessageView) rmq.ConsumerResult) {
	filters := map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression(tags)}
	consumer, err := rmq.NewPushConsumer(config(suffix),
		rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(filters),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: listener}))
	check(err)
	check(consumer.Start())
}

func receive(suffix string, topic string, filter *rmq.FilterExpression, count int) *names {
	return receiveFrom(simpleConsumer(suffix, topic, filter), count)
}

// receiveFrom returns the names of messages that a consumer receives and acknowledges.
func receiveFrom(consumer rmq.SimpleConsumer, count int) *names {
	received := &names{}
	for end := time.Now().Add(limit); len(received.list()) < count && time.Now().Before(end); {
		messages, _ := consumer.Receive(context.Background(), 16, limit) // no messages: an error
		for _, message := range messages {
			note(received, message)
			check(consumer.Ack(context.Background(), message))
		}
	}
	check(consumer.GracefulStop())
	return received
}

// consume returns the names of eight messages in the order in which a push consumer gets them.
func consume(suffix string, topic string, tags string) *names {
	pushed := &names{}
	push(suffix, topic, tags, func(message *rmq.MessageView) rmq.ConsumerResult {
		note(pushed, message)
		return rmq.SUCCESS
	})
	for end := time.Now().Add(limit); len(pushed.list()) < 8 && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	return pushed
}

func message(topic string, name string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(run + "/" + name)}
}

func send(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	receipts, err := producer.Send(context.Background(), message)
	check(err)
	return receipts[0]
}

// name returns the name in a message's body, unless the message is of another run.
func name(message *rmq.MessageView) (string, bool) {
	return strings.CutPrefix(string(message.GetBody()), run+"/")
}

func note(names *names, message *rmq.MessageView) {
	if found, isOurs := name(message); isOurs {
		names.add(found)
	}
}
