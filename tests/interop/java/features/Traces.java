import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Traces of producer and consumer are stored in the trace topic, and found by the message id. */
final class Trace extends Feature {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";

    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer(new DefaultMQProducer(group("producer"), null, true, null));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer(new DefaultMQPushConsumer(group("taker"), null,
            new AllocateMessageQueueAveragely(), true, null));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        SendResult sent = producer.send(message(topic, "tag", "traced"));
        ok(sent);
        awaitExactly(inbox, 1);
        DefaultMQPullConsumer reader = reader("reader");
        Map<String, String[]> found = new TreeMap<>();
        await(() -> {
            for (MessageExt message : readAll(reader, TRACE_TOPIC)) {
                for (String record : text(message).split("\u0002")) {
                    String[] fields = record.split("\u0001");
                    if (record.contains(sent.getMsgId())) {
                        found.put(fields[0], fields);
                        check(("" + message.getKeys()).contains(sent.getMsgId()), "its keys: " + message.getKeys());
                    }
                }
            }
            return found.keySet().containsAll(List.of("Pub", "SubBefore", "SubAfter"));
        }, () -> "three records, came " + found.keySet());
        String[] pub = found.get("Pub");
        equal("DefaultRegion", pub[2], "region");
        equal(group("producer"), pub[3], "group");
        equal(topic, pub[4], "topic");
        equal("tag", pub[6], "tag");
        equal("key-traced", pub[7], "key");
        equal(sent.getOffsetMsgId(), pub[12], "offset id");
        equal("true", pub[13], "success");
        String[] before = found.get("SubBefore");
        equal(group("taker"), before[3], "group");
        equal("0", before[6], "retries");
        equal(before[4], found.get("SubAfter")[1], "request id");
        equal("true", found.get("SubAfter")[4], "success");
        List<MessageExt> queried = new ArrayList<>();
        await(() -> {
            long now = System.currentTimeMillis();
            queried.clear();
            try {
                queried.addAll(reader.queryMessage(TRACE_TOPIC, sent.getMsgId(), 32, now - 600_000, now + 60_000)
                    .getMessageList());
            } catch (org.apache.rocketmq.client.exception.MQClientException none) {
                return false;
            }
            return queried.size() >= 2;
        }, () -> "trace records by id, came " + queried.size());
    }
}
