import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Push consumers that an administrator has pop. */
abstract class Popped extends Feature {
    static final int INVISIBLE_MS = 5000; // the least that the client allows

    void setMode(DefaultMQAdminExt admin, String topic, String group, MessageRequestMode mode) throws Exception {
        admin.setMessageRequestMode(brokerOf(admin), topic, group(group), mode, 0, 15_000);
    }

    DefaultMQPushConsumer popping(String group, String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(INVISIBLE_MS);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        return start(consumer);
    }

    static boolean pops(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getPopProcessQueueTable().keySet().stream()
            .anyMatch(queue -> queue.getTopic().equals(topic)) && owned(consumer, topic).isEmpty();
    }
}

/** Two members pop all messages once; what arrives later wakes them, and what they acknowledged stays away. */
final class PopPush extends Popped {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        DefaultMQAdminExt admin = admin();
        setMode(admin, topic, "popping", MessageRequestMode.POP);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = popping("popping", topic, taking(inbox));
        DefaultMQPushConsumer second = popping("popping", topic, taking(inbox));
        await(() -> pops(first, topic) && pops(second, topic), () -> "pops of both");
        send(producer, topic, "t", 0, 200);
        awaitExactly(inbox, 200);
        Thread.sleep(2000); // the pops are held again
        long sent = System.currentTimeMillis();
        send(producer, topic, "t", 200, 201);
        await(() -> inbox.size() > 200, () -> "the last message");
        long wokenMs = inbox.timeOf(200) - sent;
        check(wokenMs < 10_000, "woken after " + wokenMs + " ms");
        fact("woken_ms", wokenMs);
        await(() -> admin.examineConsumeStats(group("popping")).computeTotalDiff() == 0, () -> "no lag");
        Thread.sleep(INVISIBLE_MS + 5000);
        equal(201, inbox.size(), "messages after the time in which they are invisible");
        equal(201, inbox.distinct().size(), "different messages");
        for (MessageExt message : inbox.all()) {
            equal(0, message.getReconsumeTimes(), "deliveries before");
            check(message.getProperty("POP_CK") != null, "it is popped");
        }
    }
}

/** Messages that fail come again from the retry topic of pops, counted; so do those of slow listeners. */
final class PopRetry extends Popped {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        setMode(admin(), topic, "popping", MessageRequestMode.POP);
        Map<String, List<Integer>> counts = new ConcurrentHashMap<>();
        Map<String, List<Long>> times = new ConcurrentHashMap<>();
        popping("popping", topic, (messages, context) -> {
            MessageExt message = messages.get(0);
            String body = text(message);
            times.computeIfAbsent(body, key -> new CopyOnWriteArrayList<>()).add(System.currentTimeMillis());
            counts.computeIfAbsent(body, key -> new CopyOnWriteArrayList<>()).add(
                topic.equals(message.getTopic()) && ("key-" + body).equals(message.getKeys())
                    ? message.getReconsumeTimes() : -1);
            boolean isFirst = message.getReconsumeTimes() == 0;
            switch (body) {
                case "raises":
                    if (isFirst) {
                        throw new IllegalStateException("told to");
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case "null": return isFirst ? null : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case "later": return isFirst ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                case "slow":
                    if (message.getReconsumeTimes() < 2) {
                        sleep(INVISIBLE_MS + 500);
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                default: return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        });
        for (String body : new String[] {"fine", "raises", "null", "later", "slow"}) {
            ok(producer.send(message(topic, "t", body)));
        }
        Map<String, List<Integer>> wanted = Map.of("fine", List.of(0), "raises", List.of(0, 1), "null", List.of(0, 1),
            "later", List.of(0, 1), "slow", List.of(0, 1, 2));
        await(() -> counts.equals(wanted), () -> "deliveries " + counts);
        Thread.sleep(INVISIBLE_MS + 3000);
        equal(wanted, counts, "deliveries");
        for (String body : new String[] {"raises", "null", "later"}) {
            long waitMs = times.get(body).get(1) - times.get(body).get(0);
            check(waitMs > 9500, "ten seconds, as its client asks: " + waitMs);
            fact(body + "_ms", waitMs);
        }
        List<Long> slow = times.get("slow");
        check(slow.get(1) - slow.get(0) > INVISIBLE_MS - 1000, "the invisible time: " + slow);
        DefaultMQPullConsumer reader = reader("reader");
        List<MessageExt> retries = readAll(reader, "%RETRY%" + group("popping") + "_" + topic);
        if (retries.isEmpty()) { // the broker has enableRetryTopicV2
            retries = readAll(reader, "%RETRY%" + group("popping") + "+" + topic);
        }
        Map<String, Integer> stored = new TreeMap<>();
        retries.forEach(message -> stored.merge(text(message), 1, Integer::sum));
        equal(Map.of("raises", 1, "null", 1, "later", 1, "slow", 2), stored, "messages of the retry topic");
        retries.forEach(message -> equal(group("popping"), message.getProperty("ORIGIN_GROUP"), "its group"));
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}

/** A group goes from pulls to pops, back, and to pops again while messages arrive: each is received. */
final class PopSwitch extends Popped {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        DefaultMQAdminExt admin = admin();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = popping("changing", topic, taking(inbox));
        DefaultMQPushConsumer second = popping("changing", topic, taking(inbox));
        await(() -> pulls(first, topic) && pulls(second, topic), () -> "pulls of both");
        int sent = 0;
        // Pops last: a member that leaves them drops what it had popped, and only pops read the retry topic of that.
        for (MessageRequestMode mode : new MessageRequestMode[] {
                MessageRequestMode.POP, MessageRequestMode.PULL, MessageRequestMode.POP}) {
            sent = sendSlowly(producer, topic, sent);
            setMode(admin, topic, "changing", mode);
            boolean isPop = mode == MessageRequestMode.POP;
            long deadline = System.currentTimeMillis() + PATIENCE_SECONDS * 1000L;
            while (!(isPop ? pops(first, topic) && pops(second, topic) : pulls(first, topic) && pulls(second, topic))) {
                check(System.currentTimeMillis() < deadline, "in vain: mode " + mode);
                sent = sendSlowly(producer, topic, sent);
            }
            sent = sendSlowly(producer, topic, sent);
        }
        int all = sent;
        await(() -> inbox.distinct().size() == all, () -> all + " messages, came " + inbox.distinct().size());
        fact("sent", all);
        fact("again", inbox.size() - all);
    }

    private static boolean pulls(DefaultMQPushConsumer consumer, String topic) {
        return !owned(consumer, topic).isEmpty() && consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getPopProcessQueueTable().keySet().stream().noneMatch(queue -> queue.getTopic().equals(topic));
    }

    private int sendSlowly(DefaultMQProducer producer, String topic, int from) throws Exception {
        for (int number = from; number < from + 50; number++) {
            send(producer, topic, "t", number, number + 1);
            Thread.sleep(10);
        }
        return from + 50;
    }
}
