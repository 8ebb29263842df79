import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Batches, sent in every way, arrive as single messages in their order; delayed ones are refused. */
final class Batch extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        SendResult first = producer.send(batch(topic, 0, 20), queues.get(0));
        ok(first);
        equal(20, first.getMsgId().split(",").length, "ids of a batch");
        equal(20, first.getOffsetMsgId().split(",").length, "offset ids of a batch");
        ok(producer.send(batch(topic, 20, 30), queues.get(0), 15_000));
        AtomicInteger done = new AtomicInteger();
        producer.send(batch(topic, 30, 40), queues.get(0), new SendCallback() {
            @Override public void onSuccess(SendResult result) {
                done.incrementAndGet();
            }
            @Override public void onException(Throwable error) {
                error.printStackTrace();
            }
        });
        await(() -> done.get() == 1, () -> "the answer of an asynchronous batch");
        List<Message> delayed = batch(topic, 40, 42);
        delayed.forEach(message -> message.setDelayTimeLevel(1));
        try {
            producer.send(delayed);
            throw new AssertionError("a delayed batch must be refused");
        } catch (MQClientException expected) {
            check(("" + expected.getCause()).contains("elay"), "why: " + expected.getCause());
        }
        List<MessageExt> stored = readAll(reader("reader"), topic);
        equal(40, stored.size(), "stored messages");
        for (int number = 0; number < 40; number++) {
            MessageExt message = stored.get(number);
            equal(Integer.toString(number), text(message), "message " + number);
            equal((long) number, message.getQueueOffset(), "offset of " + number);
            equal("key-" + number, message.getKeys(), "keys of " + number);
            equal("n" + number % 3, message.getTags(), "tag of " + number);
            equal("p" + number, message.getUserProperty("own"), "property of " + number);
        }
        Set<String> ids = new TreeSet<>();
        stored.forEach(message -> ids.add(message.getMsgId()));
        equal(40, ids.size(), "distinct ids");
        equal(List.of(first.getMsgId().split(",")).get(7), stored.get(7).getMsgId(), "id of the eighth");
    }

    private static List<Message> batch(String topic, int from, int to) {
        List<Message> messages = new ArrayList<>();
        for (int number = from; number < to; number++) {
            Message message = message(topic, "n" + number % 3, Integer.toString(number));
            message.putUserProperty("own", "p" + number);
            messages.add(message);
        }
        return messages;
    }
}

/** Messages too large for one batch are sent in several, split by size; a too large batch is refused by either side. */
final class BatchSplit extends Feature {
    private static final int LIMIT = 256 * 1024;

    @Override void run() throws Exception {
        String topic = topic("T"); // of one queue
        DefaultMQProducer producer = producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
        List<Message> messages = new ArrayList<>();
        for (int number = 0; number < 1_000; number++) {
            messages.add(sized(topic, number, 500 + number));
        }
        int parts = 0;
        for (int from = 0; from < messages.size(); parts++) {
            int until = from;
            for (int size = 0; until < messages.size(); until++) {
                size += messages.get(until).getBody().length + 100;
                if (size > LIMIT && until > from) {
                    break;
                }
            }
            SendResult result = producer.send(messages.subList(from, until), queue);
            ok(result);
            equal((long) from, result.getQueueOffset(), "where part " + parts + " begins");
            equal(until - from, result.getMsgId().split(",").length, "ids of part " + parts);
            from = until;
        }
        fact("parts", parts);
        List<Message> tooLarge = List.of(sized(topic, 0, 3 << 20), sized(topic, 1, 3 << 20));
        try {
            producer.send(tooLarge, queue);
            throw new AssertionError("6 MiB, sent by a client of 4 MiB at most");
        } catch (MQClientException expected) {
            equal(13, expected.getResponseCode(), "why: " + expected);
        }
        DefaultMQProducer generous = new DefaultMQProducer(group("generous"));
        generous.setMaxMessageSize(16 << 20);
        producer(generous);
        try {
            generous.send(tooLarge, queue);
            throw new AssertionError("6 MiB, taken by a broker of 4 MiB at most");
        } catch (MQBrokerException expected) {
            int code = expected.getResponseCode();
            check(code == 13 || code == 1, "why: " + expected); // Java tells of a failure of its own, 1
        }
        List<MessageExt> stored = readAll(reader("reader"), topic);
        equal(1_000, stored.size(), "stored messages");
        for (int number = 0; number < 1_000; number++) {
            equal("key-" + number, stored.get(number).getKeys(), "message " + number);
            equal(500 + number, stored.get(number).getBody().length, "size of " + number);
        }
    }

    private static Message sized(String topic, int number, int size) {
        return new Message(topic, "t", "key-" + number, new byte[size]);
    }
}

/** A listener receives several messages at a time; those after its ackIndex, and failed batches, are redelivered. */
final class ConsumeBatch extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
        List<Message> messages = new ArrayList<>();
        for (int number = 0; number < 16; number++) {
            messages.add(message(topic, "t", Integer.toString(number)));
        }
        ok(producer.send(messages, queue));
        List<Integer> sizes = new ArrayList<>();
        Map<String, AtomicInteger> tries = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.subscribe(topic, "*");
        consumer.setConsumeMessageBatchMaxSize(8);
        consumer.registerMessageListener((MessageListenerConcurrently) (arrived, context) -> {
            synchronized (sizes) {
                sizes.add(arrived.size());
            }
            boolean isRetry = false;
            for (MessageExt message : arrived) {
                tries.computeIfAbsent(text(message), body -> new AtomicInteger()).incrementAndGet();
                isRetry |= message.getReconsumeTimes() > 0;
            }
            if (!isRetry && text(arrived.get(0)).equals("0")) {
                context.setAckIndex(2); // 0, 1 and 2 are done
            } else if (!isRetry && text(arrived.get(0)).equals("8")) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        start(consumer);
        await(() -> total(tries) >= 29, () -> "29 deliveries, came " + tries);
        Thread.sleep(500);
        equal(29, total(tries), "deliveries " + tries);
        for (int number = 0; number < 16; number++) {
            equal(number < 3 ? 1 : 2, tries.get(Integer.toString(number)).get(), "deliveries of " + number);
        }
        synchronized (sizes) {
            equal(List.of(8, 8), sizes.subList(0, 2), "sizes of batches");
            check(sizes.stream().allMatch(size -> size <= 8), "sizes " + sizes);
        }
    }

    private static int total(Map<String, AtomicInteger> tries) {
        return tries.values().stream().mapToInt(AtomicInteger::get).sum();
    }
}
