import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The official Java client, driven by the interop tests. One command per process; each printed
 * line is one fact, as words separated by blanks.
 *
 *   produce NAMESRV TOPIC COUNT     sends COUNT messages: single, asynchronous, one-way and batched in turn
 *   consume NAMESRV GROUP TOPIC TAGS EXPECTED FAILURES SECONDS
 *                                   push-consumes; each message's first FAILURES deliveries ask for a retry
 *   share NAMESRV GROUP TOPIC SECONDS
 *                                   push-consumes for SECONDS as a member that asks its broker whether to pull or pop
 *   broadcast NAMESRV GROUP TOPIC EXPECTED SECONDS
 *                                   push-consumes as a member that gets every message
 *   pull NAMESRV GROUP TOPIC EXPECTED SECONDS
 *                                   consumes with the lite pull consumer
 *   assign NAMESRV GROUP TOPIC EXPECTED SECONDS
 *                                   the same, with every queue assigned by hand and sought to its beginning
 */
public final class InteropClient {
    private InteropClient() { }

    public static void main(String[] args) {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); // of 20 s
        try {
            run(args);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String[] args) throws Exception {
        switch (args[0]) {
            case "produce": produce(args[1], args[2], Integer.parseInt(args[3])); break;
            case "consume":
                consume(args[1], args[2], args[3], args[4], "CLUSTERING", Integer.parseInt(args[5]),
                    Integer.parseInt(args[6]), Integer.parseInt(args[7]));
                break;
            case "share": share(args[1], args[2], args[3], Integer.parseInt(args[4])); break;
            case "broadcast":
                consume(args[1], args[2], args[3], "*", "BROADCASTING", Integer.parseInt(args[4]),
                    0, Integer.parseInt(args[5]));
                break;
            case "pull":
            case "assign":
                pull(args[1], args[2], args[3], args[0].equals("assign"), Integer.parseInt(args[4]),
                    Integer.parseInt(args[5]));
                break;
            default: throw new IllegalArgumentException(args[0]);
        }
    }

    private static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("interop-java-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10000);
        producer.start();
        return producer;
    }

    private static Message message(String topic, int number) {
        // Every eighth body is long enough for the client to compress it.
        String body = "java-" + number + (number % 8 == 0 ? "-" + "x".repeat(5000) : "");
        Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", "key-" + number,
            body.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("language", "J\u00e4v\u00e4 \u2615");
        return message;
    }

    private static void produce(String namesrv, String topic, int count) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        CountDownLatch asynchronous = new CountDownLatch((count + 3) / 4);
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message message = message(topic, number);
            switch (number % 4) {
                case 0:
                    producer.send(message, new SendCallback() {
                        @Override public void onSuccess(SendResult result) {
                            report(result);
                            asynchronous.countDown();
                        }
                        @Override public void onException(Throwable error) {
                            System.out.println("failed " + error);
                        }
                    });
                    break;
                case 1: report(producer.send(message)); break;
                case 2: producer.sendOneway(message); System.out.println("oneway"); break;
                default: batch.add(message);
            }
        }
        if (!batch.isEmpty()) {
            report(producer.send(batch));
        }
        asynchronous.await(30, TimeUnit.SECONDS);
        Thread.sleep(500); // one-way requests are answered by nothing that could be awaited
        producer.shutdown();
    }

    private static synchronized void report(SendResult result) {
        System.out.println("sent " + result.getSendStatus() + " " + result.getMsgId() + " "
            + result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
    }

    private static void consume(String namesrv, String group, String topic, String tags, String model,
            int expected, int failures, int seconds) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        // Releases 4 and 5 keep this enumeration in different packages, so that it is not named here.
        for (var known : consumer.getMessageModel().getDeclaringClass().getEnumConstants()) {
            if (known.name().equals(model)) {
                consumer.setMessageModel(known);
            }
        }
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000); // a new group's retry topic is found that soon
        consumer.subscribe(topic, tags);
        CountDownLatch done = new CountDownLatch(expected);
        Map<String, AtomicInteger> deliveries = new ConcurrentHashMap<>();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            int delivery = deliveries.computeIfAbsent(message.getKeys(), key -> new AtomicInteger()).incrementAndGet();
            print(message, delivery);
            if (delivery <= failures) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            done.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("done " + done.await(seconds, TimeUnit.SECONDS));
        Thread.sleep(500); // what listeners just said is noted
        consumer.shutdown();
    }

    private static void share(String namesrv, String group, String topic, int seconds) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        // The broker may assign the queues, and have them popped; release 4 has no such method.
        for (java.lang.reflect.Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setClientRebalance")) {
                method.invoke(consumer, false);
            }
        }
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            print(messages.get(0), 1);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Thread.sleep(seconds * 1000L);
        consumer.shutdown();
    }

    private static void pull(String namesrv, String group, String topic, boolean isAssigned, int expected, int seconds)
            throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (!isAssigned) {
            consumer.subscribe(topic, "*");
        }
        consumer.start();
        if (isAssigned) {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
            for (MessageQueue queue : queues) {
                consumer.seekToBegin(queue);
            }
        }
        int seen = 0;
        long deadline = System.currentTimeMillis() + seconds * 1000L;
        while (seen < expected && System.currentTimeMillis() < deadline) {
            for (MessageExt message : consumer.poll(1000)) {
                print(message, 1);
                seen++;
            }
        }
        System.out.println("done " + (seen >= expected));
        consumer.shutdown();
    }

    private static synchronized void print(MessageExt message, int delivery) {
        System.out.println("got " + message.getKeys() + " " + delivery + " " + message.getReconsumeTimes() + " "
            + message.getTags() + " " + message.getTopic() + " " + message.getBody().length + " "
            + message.getUserProperty("number"));
    }
}
