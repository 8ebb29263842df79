import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** Failed messages are redelivered after the requested delay, count deliveries, and become dead letters. */
final class Retry extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Map<String, List<Integer>> counts = new ConcurrentHashMap<>();
        Map<String, List<Long>> times = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer("retrying");
        consumer.setMaxReconsumeTimes(3);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = text(message);
            counts.computeIfAbsent(body, key -> new CopyOnWriteArrayList<>()).add(message.getReconsumeTimes());
            times.computeIfAbsent(body, key -> new CopyOnWriteArrayList<>()).add(System.currentTimeMillis());
            check(topic.equals(message.getTopic()), "topic " + message.getTopic());
            context.setDelayLevelWhenNextConsume(body.equals("to-dlq") ? -1 : 1);
            switch (body) {
                case "raises": throw new IllegalStateException("told to");
                case "null": return message.getReconsumeTimes() < 1 ? null : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case "twice": return message.getReconsumeTimes() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case "never":
                case "to-dlq": return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                default: return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        start(consumer);
        for (String body : new String[] {"fine", "raises", "null", "twice", "never", "to-dlq"}) {
            ok(producer.send(message(topic, "t", body)));
        }
        DefaultMQPullConsumer reader = reader("reader");
        List<MessageExt> dead = new ArrayList<>();
        await(() -> {
            dead.clear();
            dead.addAll(readAll(reader, "%DLQ%" + group("retrying")));
            return dead.size() >= 3;
        }, () -> "3 dead letters, came " + dead.size() + ", deliveries " + counts);
        Thread.sleep(1500);
        equal(Map.of("fine", List.of(0), "raises", List.of(0, 1, 2, 3), "null", List.of(0, 1), "twice",
            List.of(0, 1, 2), "never", List.of(0, 1, 2, 3), "to-dlq", List.of(0)), counts, "deliveries");
        for (List<Long> moments : times.values()) {
            for (int index = 1; index < moments.size(); index++) {
                check(moments.get(index) - moments.get(index - 1) > 900, "a level of a second: " + moments);
            }
        }
        for (MessageExt message : dead) {
            equal(topic, message.getProperty("RETRY_TOPIC"), "its topic");
            check(message.getProperty("ORIGIN_MESSAGE_ID") != null, "the id it had first");
            equal("key-" + text(message), message.getKeys(), "its keys");
            equal("t", message.getTags(), "its tag");
        }
    }
}
