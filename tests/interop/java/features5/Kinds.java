import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages of a priority go to its queue, whatever the client chose; others lose the property. */
final class Priority extends Feature {
    @Override void run() throws Exception {
        DefaultMQProducer producer = producer();
        String topic = topic("Priority"); // of 4 queues
        for (int priority = 0; priority < 6; priority++) {
            Message message = message(topic, "t", "p" + priority);
            message.setPriority(priority);
            ok(producer.send(message));
        }
        List<MessageExt> stored = readAll(reader("reader"), topic);
        equal(6, stored.size(), "messages");
        for (MessageExt message : stored) {
            int priority = Integer.parseInt(text(message).substring(1));
            equal(Math.min(priority, 3), message.getQueueId(), "queue of priority " + priority);
            equal(priority, message.getPriority(), "priority");
        }
        Inbox inbox = consume("taker", topic, "*");
        awaitExactly(inbox, 6);
    }
}

/** Whatever type a topic says it has, a broker takes every message: only proxies look at it. */
final class MessageTypes extends Feature {
    @Override void run() throws Exception {
        DefaultMQProducer producer = producer();
        for (String type : new String[] {"Normal", "Fifo", "Delay", "Transaction", "Mixed"}) {
            String topic = topic(type);
            ok(producer.send(message(topic, "t", "normal")));
            Message delayed = message(topic, "t", "delayed");
            delayed.setDelayTimeLevel(1);
            ok(producer.send(delayed));
            Message ordered = message(topic, "t", "ordered");
            ok(producer.send(ordered, (queues, sent, argument) -> queues.get(0), null));
            Inbox inbox = consume("taker-" + type, topic, "*");
            awaitExactly(inbox, 3);
            equal(Set.of("normal", "delayed", "ordered"), inbox.distinct(), "messages of " + type);
        }
    }
}

/** Bodies packed in each way arrive as they were. */
final class Compression extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        String body = "squeeze me ".repeat(2_000);
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer producer = new DefaultMQProducer(group("producer-" + type.name()));
            producer.setCompressType(type);
            ok(producer(producer).send(new Message(topic, type.name(), bytes)));
        }
        Inbox inbox = consume("taker", topic, "*");
        awaitExactly(inbox, CompressionType.values().length);
        equal(Set.of(body), inbox.distinct(), "bodies");
        for (MessageExt message : inbox.all()) {
            check(message.getStoreSize() < body.length() / 2, message.getTags() + " is stored packed: " + message.getStoreSize());
        }
    }
}

/** A namespace of the new kind: the name goes along with requests, topics and groups are as they are told. */
final class NamespaceV2 extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = new DefaultMQProducer(group("producer"));
        producer.setNamespaceV2("space-of-2");
        producer(producer);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.setNamespaceV2("space-of-2");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        send(producer, topic, "t", 0, 4);
        awaitExactly(inbox, 4);
        for (MessageExt message : inbox.all()) {
            equal(topic, message.getTopic(), "topic");
        }
        equal(4, readAll(reader("outside"), topic).size(), "messages as others see them");
    }
}
