import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * One feature of the official client that checks its own result: `run` returns, or throws the failed
 * check. It has its own topics and groups; the tests create its topics.
 */
abstract class Feature {
    static final int PATIENCE_SECONDS = 60; // ends what hangs: a busy machine takes many times the usual
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    String namesrv;
    String prefix;
    final Map<String, Object> facts = new LinkedHashMap<>();
    private final Deque<Runnable> closers = new ArrayDeque<>();

    abstract void run() throws Exception;

    /** The messages that a listener received, in order, from all threads. */
    static final class Inbox {
        private final List<MessageExt> messages = new ArrayList<>();
        private final List<Long> times = new ArrayList<>();

        synchronized void add(List<MessageExt> arrived) {
            messages.addAll(arrived);
            arrived.forEach(message -> times.add(System.currentTimeMillis()));
        }

        synchronized int size() {
            return messages.size();
        }

        synchronized List<MessageExt> all() {
            return new ArrayList<>(messages);
        }

        synchronized long timeOf(int index) {
            return times.get(index);
        }

        synchronized List<String> bodies() {
            List<String> bodies = new ArrayList<>();
            messages.forEach(message -> bodies.add(text(message)));
            return bodies;
        }

        Set<String> distinct() {
            return new TreeSet<>(bodies());
        }
    }

    String topic(String name) {
        return prefix + name;
    }

    String group(String name) {
        return prefix + "group-" + name;
    }

    static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, "key-" + body, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static void check(boolean isSo, String what) {
        if (!isSo) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object expected, Object actual, String what) {
        check(Objects.equals(expected, actual), what + ": " + actual + ", expected " + expected);
    }

    void fact(String name, Object value) {
        facts.put(name, value);
    }

    /** Runs `close` at the end, last first. */
    void atEnd(Runnable close) {
        closers.push(close);
    }

    void close() {
        while (!closers.isEmpty()) {
            closers.pop().run();
        }
    }

    static void await(Callable<Boolean> condition, Callable<String> what) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_SECONDS * 1000L;
        while (!condition.call()) {
            check(System.currentTimeMillis() < deadline, "in vain: " + what.call());
            Thread.sleep(20);
        }
    }

    /** Waits for `count` messages; within a moment after that there must be no more. */
    static void awaitExactly(Inbox inbox, int count) throws Exception {
        await(() -> inbox.size() >= count, () -> count + " messages, came " + inbox.bodies());
        Thread.sleep(500);
        equal(count, inbox.size(), "messages " + inbox.bodies());
    }

    DefaultMQProducer producer() throws Exception {
        return producer(new DefaultMQProducer(group("producer")));
    }

    <P extends DefaultMQProducer> P producer(P producer) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(15_000);
        producer.setHeartbeatBrokerInterval(1000); // brokers it meets later know it that soon
        producer.setInstanceName("producer-" + INSTANCES.incrementAndGet());
        producer.start();
        atEnd(producer::shutdown);
        return producer;
    }

    DefaultMQPushConsumer consumer(String group) {
        return consumer(new DefaultMQPushConsumer(group(group)));
    }

    DefaultMQPushConsumer consumer(DefaultMQPushConsumer consumer) {
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000); // new topics, such as its retry topic, are found that soon
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setInstanceName("consumer-" + INSTANCES.incrementAndGet());
        return consumer;
    }

    /** Releases 4 and 5 keep this enumeration in different packages, so that it is not named here. */
    static void setModel(DefaultMQPushConsumer consumer, String name) {
        for (var known : consumer.getMessageModel().getDeclaringClass().getEnumConstants()) {
            if (known.name().equals(name)) {
                consumer.setMessageModel(known);
            }
        }
    }

    <C extends DefaultMQPushConsumer> C start(C consumer) throws Exception {
        consumer.start();
        atEnd(consumer::shutdown);
        return consumer;
    }

    /** Returns the messages that a new group receives from the beginning of the topic. */
    Inbox consume(String group, String topic, String tags) throws Exception {
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, tags);
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        await(() -> !owned(consumer, topic).isEmpty(), () -> "queues of " + topic);
        return inbox;
    }

    static MessageListenerConcurrently taking(Inbox inbox) {
        return (messages, context) -> {
            inbox.add(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    /** Returns the queues of a topic that a push consumer owns. */
    static Set<MessageQueue> owned(DefaultMQPushConsumer consumer, String topic) {
        Set<MessageQueue> queues = new TreeSet<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                .getProcessQueueTable().keySet()) {
            if (queue.getTopic().equals(topic)) {
                queues.add(queue);
            }
        }
        return queues;
    }

    static void ok(SendResult result) {
        equal(SendStatus.SEND_OK, result.getSendStatus(), "send status");
    }

    void send(DefaultMQProducer producer, String topic, String tag, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            ok(producer.send(message(topic, tag, Integer.toString(number))));
        }
    }

    DefaultMQPullConsumer reader(String group) throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer(group(group));
        reader.setNamesrvAddr(namesrv);
        reader.setInstanceName("reader-" + INSTANCES.incrementAndGet());
        reader.setHeartbeatBrokerInterval(1000);
        reader.start();
        atEnd(reader::shutdown);
        return reader;
    }

    DefaultMQAdminExt admin() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(15_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin-" + INSTANCES.incrementAndGet());
        admin.start();
        atEnd(admin::shutdown);
        return admin;
    }

    /** Returns the address of the only broker. */
    static String brokerOf(DefaultMQAdminExt admin) throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
    }

    static String clientId(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }

    /** Returns all messages of a topic, queue by queue; empty if the topic does not exist yet. */
    static List<MessageExt> readAll(DefaultMQPullConsumer reader, String topic) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        Set<MessageQueue> queues;
        try {
            queues = new TreeSet<>(reader.fetchSubscribeMessageQueues(topic));
        } catch (MQClientException unknown) {
            return found;
        }
        for (MessageQueue queue : queues) {
            long offset = reader.minOffset(queue);
            while (offset < reader.maxOffset(queue)) {
                PullResult result = reader.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
                offset = result.getNextBeginOffset();
            }
        }
        return found;
    }
}
