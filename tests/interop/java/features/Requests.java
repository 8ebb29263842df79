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

/** A request gets the reply of whoever consumed it; one without reply times out. */
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
