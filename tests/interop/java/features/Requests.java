import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A request receives the reply of its consumer; a request without a reply times out. */
final class RequestReply extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer replier = producer();
        DefaultMQPushConsumer consumer = consumer("replier");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (!"ignored".equals(message.getTags())) {
                    answer(replier, message);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(consumer);
        await(() -> !owned(consumer, topic).isEmpty(), () -> "queues");
        DefaultMQProducer requester = producer();
        for (int number = 0; number < 5; number++) {
            Message reply = requester.request(message(topic, "t", "ask-" + number), 15_000);
            equal("re:ask-" + number, text(reply), "reply");
            equal("said", reply.getProperty("own"), "property of the reply");
            check(reply.getProperty("ARRIVE_TIME") != null, "it has its time");
        }
        String big = "x".repeat(10_000); // long enough for the client to compress it
        Message reply = requester.request(new Message(topic, "t", big.getBytes(StandardCharsets.UTF_8)), 15_000);
        equal("re:" + big, text(reply), "a long reply");

        CompletableFuture<Message> later = new CompletableFuture<>();
        requester.request(message(topic, "t", "callback"), new RequestCallback() {
            @Override public void onSuccess(Message message) {
                if (message != null) { // releases call it without one when the request was stored
                    later.complete(message);
                }
            }
            @Override public void onException(Throwable error) {
                later.completeExceptionally(error);
            }
        }, 15_000);
        equal("re:callback", text(later.get(20, TimeUnit.SECONDS)), "reply by callback");
        try {
            requester.request(message(topic, "ignored", "ignored"), 1_000);
            throw new AssertionError("a request without reply must time out");
        } catch (RequestTimeoutException expected) {
            fact("timeout", expected.getResponseCode());
        }
    }

    private static void answer(DefaultMQProducer replier, MessageExt message) {
        try {
            Message reply = MessageUtil.createReplyMessage(message,
                ("re:" + text(message)).getBytes(StandardCharsets.UTF_8));
            reply.putUserProperty("own", "said");
            ok(replier.send(reply, 15_000));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}

/** A request without a reply in time fails, as a call and by callback; a late reply is discarded. */
final class RequestTimeout extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer replier = producer();
        DefaultMQProducer requester = producer();
        try {
            requester.request(message(topic, "t", "nobody"), 1_000);
            throw new AssertionError("nobody consumes it");
        } catch (RequestTimeoutException expected) {
            check(true, "in time");
        }
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("replier");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                sleep(message.getTags().equals("slow") ? 2_500 : 0);
                answer(replier, message);
            }
            inbox.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(consumer);
        awaitExactly(inbox, 1); // that of nobody is answered, to a requester that waits no longer
        CompletableFuture<Throwable> failed = new CompletableFuture<>();
        requester.request(message(topic, "slow", "slow"), new RequestCallback() {
            @Override public void onSuccess(Message message) {
                if (message != null) {
                    failed.completeExceptionally(new AssertionError("it came in time"));
                }
            }
            @Override public void onException(Throwable error) {
                failed.complete(error);
            }
        }, 1_000);
        Throwable error = failed.get(20, TimeUnit.SECONDS);
        check(error instanceof RequestTimeoutException, "why: " + error);
        awaitExactly(inbox, 2);
        Message reply = requester.request(message(topic, "t", "after"), 15_000);
        equal("re:after", text(reply), "the requester goes on");
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private static void answer(DefaultMQProducer replier, MessageExt message) {
        try {
            byte[] body = ("re:" + text(message)).getBytes(StandardCharsets.UTF_8);
            replier.send(MessageUtil.createReplyMessage(message, body), 15_000);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
