// The official Go client, driven by the interop tests. One command per process; each printed line
// is one fact, as words separated by blanks, as InteropClient.java prints them.
//
//	produce NAMESRV TOPIC COUNT      sends COUNT messages: asynchronous, single, one-way and batched in turn
//	consume NAMESRV GROUP TOPIC TAGS EXPECTED FAILURES SECONDS
//	                                 push-consumes; each message's first FAILURES deliveries ask for a retry
//	broadcast NAMESRV GROUP TOPIC EXPECTED SECONDS   every member gets every message
//	pull NAMESRV GROUP TOPIC EXPECTED SECONDS        polls and acknowledges
//	admin NAMESRV BROKER TOPIC       creates a topic, lists all, deletes it
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("error")
	rlog.SetOutputPath(os.DevNull)
	arguments := os.Args[1:]
	switch arguments[0] {
	case "produce":
		produce(arguments[1], arguments[2], number(arguments[3]))
	case "consume":
		consume(arguments[1], arguments[2], arguments[3], arguments[4], consumer.Clustering,
			number(arguments[5]), number(arguments[6]), number(arguments[7]))
	case "broadcast":
		consume(arguments[1], arguments[2], arguments[3], "*", consumer.BroadCasting,
			number(arguments[4]), 0, number(arguments[5]))
	case "pull":
		pull(arguments[1], arguments[2], arguments[3], number(arguments[4]), number(arguments[5]))
	case "admin":
		administer(arguments[1], arguments[2], arguments[3])
	default:
		panic("unknown command " + arguments[0])
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func message(topic string, number int) *primitive.Message {
	body := fmt.Sprintf("go-%d", number)
	if number%8 == 0 { // long enough for the client to compress it
		body += "-" + strings.Repeat("x", 5000)
	}
	message := primitive.NewMessage(topic, []byte(body))
	message.WithTag([]string{"even", "odd"}[number%2])
	message.WithKeys([]string{fmt.Sprintf("key-%d", number)})
	message.WithProperty("number", strconv.Itoa(number))
	message.WithProperty("language", "Gö ☕")
	return message
}

func report(result *primitive.SendResult) {
	status := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}[result.Status]
	fmt.Println("sent", status, result.MsgID, result.MessageQueue.QueueId, result.QueueOffset)
}

func produce(namesrv, topic string, count int) {
	client, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{namesrv}),
		producer.WithGroupName("interop-go-producer"),
		producer.WithSendMsgTimeout(10*time.Second))
	check(err)
	check(client.Start())
	var asynchronous sync.WaitGroup
	var batch []*primitive.Message
	for n := 0; n < count; n++ {
		switch next := message(topic, n); n % 4 {
		case 0:
			asynchronous.Add(1)
			check(client.SendAsync(context.Background(),
				func(_ context.Context, result *primitive.SendResult, err error) {
					check(err)
					report(result)
					asynchronous.Done()
				}, next))
		case 1:
			result, err := client.SendSync(context.Background(), next)
			check(err)
			report(result)
		case 2:
			check(client.SendOneWay(context.Background(), next))
			fmt.Println("oneway")
		default:
			batch = append(batch, next)
		}
	}
	result, err := client.SendSync(context.Background(), batch...)
	check(err)
	report(result)
	asynchronous.Wait()
	time.Sleep(500 * time.Millisecond) // one-way requests have no answer to wait for
	check(client.Shutdown())
}

// counted prints deliveries, with the number of the delivery of each message.
type counted struct {
	lock       sync.Mutex
	deliveries map[string]int
}

func (c *counted) print(message *primitive.MessageExt) int {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.deliveries[message.GetKeys()]++
	delivery := c.deliveries[message.GetKeys()]
	fmt.Println("got", message.GetKeys(), delivery, message.ReconsumeTimes, message.GetTags(),
		message.Topic, len(message.Body), message.GetProperty("number"))
	return delivery
}

func consume(namesrv, group, topic, tags string, model consumer.MessageModel, expected, failures, seconds int) {
	client, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithConsumerModel(model),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	seen := counted{deliveries: map[string]int{}}
	done := make(chan struct{}, expected)
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if seen.print(messages[0]) <= failures {
			return consumer.ConsumeRetryLater, nil
		}
		done <- struct{}{}
		return consumer.ConsumeSuccess, nil
	}
	check(client.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: tags}, listen))
	check(client.Start())
	deadline := time.After(time.Duration(seconds) * time.Second)
	for left := expected; left > 0; left-- {
		select {
		case <-done:
		case <-deadline:
			fmt.Println("done false")
			return
		}
	}
	fmt.Println("done true")
	time.Sleep(500 * time.Millisecond) // until the results of listeners are recorded
	check(client.Shutdown())
}

func pull(namesrv, group, topic string, expected, seconds int) {
	client, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	check(client.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}))
	check(client.Start())
	seen := counted{deliveries: map[string]int{}}
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	left := expected
	for left > 0 && time.Now().Before(deadline) {
		polled, err := client.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err)
		for _, message := range polled.GetMsgList() {
			seen.print(message)
			left--
		}
		client.ACK(context.Background(), polled, consumer.ConsumeSuccess)
	}
	fmt.Println("done", left <= 0)
	check(client.Shutdown())
}

func administer(namesrv, broker, topic string) {
	client, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{namesrv})))
	check(err)
	check(client.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(broker)))
	fmt.Println("created", topic)
	topics, err := client.FetchAllTopicList(context.Background())
	check(err)
	for _, name := range topics.TopicList {
		fmt.Println("topic", name)
	}
	check(client.DeleteTopic(context.Background(), admin.WithTopicDelete(topic),
		admin.WithBrokerAddrDelete(broker), admin.WithNameSrvAddr([]string{namesrv})))
	fmt.Println("deleted", topic)
	check(client.Close())
}
