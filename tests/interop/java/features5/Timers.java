import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages with a time of their own come at it, once and never early; too far or odd ones are refused. */
final class Timer extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        Inbox inbox = consume("taker", topic, "*");
        DefaultMQProducer producer = producer();
        Map<String, Long> due = new HashMap<>();
        for (int number = 0; number < 3; number++) {
            Message seconds = message(topic, "t", "seconds-" + number);
            seconds.setDelayTimeSec(2 + number);
            due.put(text(seconds), System.currentTimeMillis() + (2 + number) * 1000L);
            ok(producer.send(seconds));
            Message millis = message(topic, "t", "millis-" + number);
            millis.setDelayTimeMs(2500 + number * 700);
            due.put(text(millis), System.currentTimeMillis() + 2500 + number * 700);
            ok(producer.send(millis));
            Message at = message(topic, "t", "at-" + number);
            long time = System.currentTimeMillis() + 3300 + number * 900;
            at.setDeliverTimeMs(time);
            due.put(text(at), time);
            ok(producer.send(at));
        }
        Message past = message(topic, "t", "past");
        past.setDeliverTimeMs(System.currentTimeMillis() - 60_000);
        due.put("past", System.currentTimeMillis());
        ok(producer.send(past));
        awaitExactly(inbox, 10);
        equal(due.keySet(), inbox.distinct(), "messages");
        equal("past", inbox.bodies().get(0), "the first");
        List<MessageExt> messages = inbox.all();
        long worst = 0;
        for (int index = 0; index < messages.size(); index++) {
            long lateness = inbox.timeOf(index) - due.get(text(messages.get(index)));
            // Java keeps whole seconds, and moves a time that is one a second ahead.
            check(lateness > -1100, text(messages.get(index)) + " came " + -lateness + " ms early");
            worst = Math.max(worst, lateness);
            equal(topic, messages.get(index).getTopic(), "topic");
        }
        fact("worst_ms", worst);
    }
}

/** A timer is taken back by its handle before its time; once it came, or with a bad handle, it is not. */
final class Recall extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        Inbox inbox = consume("taker", topic, "*");
        DefaultMQProducer producer = producer();
        Message kept = message(topic, "t", "kept");
        kept.setDelayTimeSec(6);
        SendResult keptResult = producer.send(kept);
        Message gone = message(topic, "t", "gone");
        gone.setDelayTimeSec(6);
        SendResult goneResult = producer.send(gone);
        check(goneResult.getRecallHandle() != null, "a timer has a handle");
        equal(goneResult.getMsgId(), producer.recallMessage(topic, goneResult.getRecallHandle()), "id of the recalled");
        refused(producer, topic, "nonsense");
        SendResult plain = producer.send(message(topic, "t", "plain"));
        equal(null, plain.getRecallHandle(), "handle of a plain message");
        await(() -> inbox.size() >= 2, () -> "two messages, came " + inbox.bodies());
        Thread.sleep(2500);
        equal(Set.of("kept", "plain"), inbox.distinct(), "messages");
        equal(2, inbox.size(), "messages");
        refused(producer, topic, keptResult.getRecallHandle());
    }

    private static void refused(DefaultMQProducer producer, String topic, String handle) throws Exception {
        try {
            producer.recallMessage(topic, handle);
            throw new AssertionError("recalled by " + handle);
        } catch (MQBrokerException expected) {
            check(expected.getResponseCode() == 604, "why: " + expected);
        } catch (MQClientException expected) {
            check(true, "the client itself knows that it is none");
        }
    }
}
