import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages are found by offset id, unique id, key and time; missing ones are an error. */
final class Query extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        long start = System.currentTimeMillis();
        SendResult result = null;
        for (int number = 0; number < 6; number++) {
            Message message = message(topic, "t", Integer.toString(number));
            message.setKeys(List.of("own-" + number, "shared", "pair-" + number / 2));
            result = producer.send(message);
            ok(result);
        }
        long end = System.currentTimeMillis() + 60_000;
        SendResult last = result;
        await(() -> !query(producer, topic, "own-5", start - 60_000, end).isEmpty(), () -> "the index");
        equal(Set.of("5"), query(producer, topic, "own-5", start - 60_000, end), "by its own key");
        equal(Set.of("2", "3"), query(producer, topic, "pair-1", start - 60_000, end), "by a key of two");
        equal(6, query(producer, topic, "shared", start - 60_000, end).size(), "by a key of all");
        equal(3, producer.queryMessage(topic, "shared", 3, start - 60_000, end).getMessageList().size(), "at most 3");
        equal(Set.of(), query(producer, topic, "none", start - 60_000, end), "by no key");
        equal(Set.of(), query(producer, topic, "shared", start - 600_000, start - 300_000), "before its time");
        equal(Set.of(), query(producer, topic("Other"), "shared", start - 60_000, end), "of another topic");

        MessageExt byUnique = producer.viewMessage(topic, last.getMsgId());
        equal("5", text(byUnique), "by unique id");
        equal(last.getQueueOffset(), byUnique.getQueueOffset(), "its queue offset");
        equal(last.getMessageQueue().getQueueId(), byUnique.getQueueId(), "its queue");
        MessageExt byOffset = producer.viewMessage(topic, last.getOffsetMsgId());
        equal("5", text(byOffset), "by offset id");
        equal(byUnique.getCommitLogOffset(), byOffset.getCommitLogOffset(), "the same place");
        try {
            String id = last.getMsgId();
            producer.viewMessage(topic, id.substring(0, id.length() - 4) + "FFFF");
            throw new AssertionError("no message has this id");
        } catch (MQClientException | MQBrokerException expected) {
            fact("no_such_id", expected.getMessage());
        }
    }

    private static Set<String> query(DefaultMQProducer producer, String topic, String key, long from, long to)
            throws Exception {
        Set<String> bodies = new TreeSet<>();
        try {
            QueryResult result = producer.queryMessage(topic, key, 32, from, to);
            result.getMessageList().forEach(message -> bodies.add(text(message)));
        } catch (MQClientException none) {
            check(none.getResponseCode() == 208 || none.getResponseCode() == 22 || none.getResponseCode() == 17,
                "why nothing is found: " + none);
        }
        return bodies;
    }
}
