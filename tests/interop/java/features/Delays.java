import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages with a delay level are delivered after the delay, and not before. */
final class DelayLevels extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        Inbox inbox = consume("taker", topic, "late");
        DefaultMQProducer producer = producer();
        Map<String, Long> due = new HashMap<>();
        for (int level = 0; level <= 3; level++) {
            Message message = message(topic, "late", "level-" + level);
            message.setDelayTimeLevel(level);
            message.putUserProperty("own", "kept");
            due.put(text(message), System.currentTimeMillis() + (level == 0 ? 0 : 1000));
            ok(producer.send(message));
        }
        awaitExactly(inbox, 4);
        List<MessageExt> messages = inbox.all();
        equal("level-0", text(messages.get(0)), "first message");
        for (int index = 0; index < messages.size(); index++) {
            MessageExt message = messages.get(index);
            long lateness = inbox.timeOf(index) - due.get(text(message));
            check(lateness >= -100, text(message) + " came " + -lateness + " ms early");
            equal(topic, message.getTopic(), "topic");
            equal("kept", message.getUserProperty("own"), "its property");
            equal("late", message.getTags(), "tag");
            fact(text(message) + "_late_ms", lateness);
        }
    }
}
