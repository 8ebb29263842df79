import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageExt;

/** Helpers for checks of orderly consumption. */
abstract class Ordered extends Feature {
    static final int KEYS = 6;

    /** Sends numbers `from` to `to` for each key, all of one key to one queue. */
    void sendKeyed(DefaultMQProducer producer, String topic, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            for (int key = 0; key < KEYS; key++) {
                ok(producer.send(message(topic, "t", key + ":" + number), new SelectMessageQueueByHash(), "k" + key));
            }
        }
    }

    /** Returns key -> its numbers in the order of delivery. */
    static Map<String, List<Integer>> byKey(List<String> bodies) {
        Map<String, List<Integer>> numbers = new TreeMap<>();
        for (String body : bodies) {
            String[] parts = body.split(":");
            numbers.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(Integer.parseInt(parts[1]));
        }
        return numbers;
    }

    static List<Integer> upTo(int count) {
        List<Integer> numbers = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            numbers.add(number);
        }
        return numbers;
    }

    static void checkOrder(Inbox inbox, int count) {
        Map<String, List<Integer>> numbers = byKey(inbox.bodies());
        equal(KEYS, numbers.size(), "keys");
        numbers.forEach((key, found) -> equal(upTo(count), found, "order of key " + key));
    }
}

/** Messages of a key are delivered in order, one at a time per queue, also after retries. */
final class Orderly extends Ordered {
    @Override void run() throws Exception {
        String topic = topic("T");
        sendKeyed(producer(), topic, 0, 10);
        Inbox inbox = new Inbox();
        Map<Integer, AtomicInteger> inside = new ConcurrentHashMap<>();
        Map<String, AtomicInteger> tries = new ConcurrentHashMap<>();
        AtomicInteger overlaps = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("orderly");
        consumer.subscribe(topic, "*");
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            AtomicInteger threads = inside.computeIfAbsent(message.getQueueId(), id -> new AtomicInteger());
            try {
                if (threads.incrementAndGet() > 1) {
                    overlaps.incrementAndGet();
                }
                int failed = tries.computeIfAbsent(text(message), body -> new AtomicInteger()).getAndIncrement();
                if (text(message).endsWith(":3") && failed < 2) {
                    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                }
                inbox.add(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            } finally {
                threads.decrementAndGet();
            }
        });
        start(consumer);
        awaitExactly(inbox, KEYS * 10);
        checkOrder(inbox, 10);
        equal(0, overlaps.get(), "queues with two threads at a time");
        for (int key = 0; key < KEYS; key++) {
            equal(3, tries.get(key + ":3").get(), "tries of " + key + ":3");
            equal(1, tries.get(key + ":4").get(), "tries of " + key + ":4");
        }
    }
}

/** Without auto-commit, rolled back messages are redelivered, and committed ones are not. */
final class OrderlyManual extends Ordered {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        for (int number = 0; number < 6; number++) {
            ok(producer.send(message(topic, "t", "0:" + number), new SelectMessageQueueByHash(), "k"));
        }
        Inbox inbox = new Inbox();
        AtomicInteger rollbacks = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("manual");
        consumer.subscribe(topic, "*");
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            context.setAutoCommit(false);
            inbox.add(messages);
            int number = Integer.parseInt(text(messages.get(0)).split(":")[1]);
            if (number == 1 || number == 5) {
                return ConsumeOrderlyStatus.COMMIT;
            }
            if (number == 3 && rollbacks.getAndIncrement() == 0) {
                return ConsumeOrderlyStatus.ROLLBACK;
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        start(consumer);
        awaitExactly(inbox, 8);
        equal(List.of(0, 1, 2, 3, 2, 3, 4, 5), byKey(inbox.bodies()).get("0"), "deliveries");
    }
}

/** A message that fails too often becomes a dead letter, and the messages after it are delivered. */
final class OrderlyDeadLetter extends Ordered {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        for (int number = 0; number < 4; number++) {
            ok(producer.send(message(topic, "t", "0:" + number), new SelectMessageQueueByHash(), "k"));
        }
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("dead");
        consumer.subscribe(topic, "*");
        consumer.setMaxReconsumeTimes(2);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            inbox.add(messages);
            boolean isBad = text(messages.get(0)).equals("0:1");
            return isBad ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        start(consumer);
        awaitExactly(inbox, 6);
        equal(List.of(0, 1, 1, 1, 2, 3), byKey(inbox.bodies()).get("0"), "deliveries");
        List<MessageExt> dead = new ArrayList<>();
        var reader = reader("reader");
        await(() -> {
            dead.clear();
            return dead.addAll(readAll(reader, "%DLQ%" + group("dead")));
        }, () -> "a dead letter");
        equal(1, dead.size(), "dead letters");
        equal("0:1", text(dead.get(0)), "dead letter");
        equal(topic, dead.get(0).getProperty("RETRY_TOPIC"), "topic of the dead letter");
    }
}

/** A queue that is reassigned to another member is handed over in order and without duplicates. */
final class OrderlyMove extends Ordered {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = member(topic, inbox);
        await(() -> owned(first, topic).size() == 4, () -> "the first has all queues");
        sendKeyed(producer, topic, 0, 5);
        DefaultMQPushConsumer second = member(topic, inbox);
        sendKeyed(producer, topic, 5, 10);
        await(() -> owned(first, topic).size() == 2 && owned(second, topic).size() == 2,
            () -> "each has two queues: " + owned(first, topic) + owned(second, topic));
        sendKeyed(producer, topic, 10, 15);
        await(() -> inbox.size() >= KEYS * 15, () -> "90 messages, came " + inbox.size());
        first.shutdown();
        await(() -> owned(second, topic).size() == 4, () -> "the second has all queues");
        sendKeyed(producer, topic, 15, 20);
        awaitExactly(inbox, KEYS * 20);
        checkOrder(inbox, 20);
    }

    private DefaultMQPushConsumer member(String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = consumer("moving");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            inbox.add(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        return start(consumer);
    }
}

/** Each member of a broadcasting group receives all messages in order, without locks. */
final class OrderlyBroadcast extends Ordered {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox one = new Inbox();
        Inbox two = new Inbox();
        DefaultMQPushConsumer first = member(topic, one, "o1");
        DefaultMQPushConsumer second = member(topic, two, "o2");
        await(() -> owned(first, topic).size() == 4 && owned(second, topic).size() == 4, () -> "all queues each");
        sendKeyed(producer, topic, 0, 6);
        awaitExactly(one, KEYS * 6);
        awaitExactly(two, KEYS * 6);
        checkOrder(one, 6);
        checkOrder(two, 6);
    }

    private DefaultMQPushConsumer member(String topic, Inbox inbox, String name) throws Exception {
        DefaultMQPushConsumer consumer = consumer("everyone");
        setModel(consumer, "BROADCASTING");
        consumer.setInstanceName(name + prefix + System.nanoTime());
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            inbox.add(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        return start(consumer);
    }
}
