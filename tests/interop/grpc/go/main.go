// Sends messages, receives them with a simple consumer, and prints the bodies:
// ENDPOINTS plain|tls GROUP.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	rmq.EnableSsl = os.Args[2] == "tls"
	rmq.ResetLogger()
	config := &rmq.Config{
		Endpoint:      os.Args[1],
		ConsumerGroup: os.Args[3],
		Credentials:   &credentials.SessionCredentials{},
	}
	producer, err := rmq.NewProducer(config, rmq.WithTopics("normal"))
	check(err)
	check(producer.Start())
	consumer, err := rmq.NewSimpleConsumer(config,
		rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{"normal": rmq.NewFilterExpression("go")}))
	check(err)
	check(consumer.Start())
	for number := 0; number < 8; number++ {
		message := &rmq.Message{Topic: "normal", Body: []byte(fmt.Sprintf("%s/go-%d", os.Args[3], number))}
		message.SetTag("go")
		message.SetKeys("key")
		_, err := producer.Send(context.Background(), message)
		check(err)
	}
	received := map[string]bool{}
	for end := time.Now().Add(60 * time.Second); len(received) < 8 && time.Now().Before(end); {
		messages, err := consumer.Receive(context.Background(), 16, 15*time.Second)
		if err != nil { // nothing there yet is an error of this client
			continue
		}
		for _, message := range messages {
			if body, isOurs := strings.CutPrefix(string(message.GetBody()), os.Args[3]+"/"); isOurs {
				received[body] = true
			}
			check(consumer.Ack(context.Background(), message))
		}
	}
	bodies := []string{}
	for body := range received {
		bodies = append(bodies, body)
	}
	sort.Strings(bodies)
	fmt.Println("received " + strings.Join(bodies, ","))
	check(consumer.GracefulStop())
	check(producer.GracefulStop())
}
