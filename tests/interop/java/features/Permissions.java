import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A topic without write permission refuses sends, one without read permission refuses pulls, until restored. */
final class Permissions extends Feature {
    private static final int NO_PERMISSION = 16;

    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQAdminExt admin = admin();
        DefaultMQProducer producer = producer();
        MessageQueue queue = producer.fetchPublishMessageQueues(topic).get(0);
        ok(producer.send(message(topic, "t", "first"), queue));

        allow(admin, topic, 4); // to read; brokers leave it to producers not to find a queue to write to
        DefaultMQProducer late = producer(new DefaultMQProducer(group("late")));
        try {
            late.send(message(topic, "t", "refused"));
            throw new AssertionError("a message for a topic without queues to write to");
        } catch (MQClientException expected) {
            check(expected.getMessage().contains("No route info"), "why: " + expected);
        }
        Inbox inbox = consume("taker", topic, "*");
        awaitExactly(inbox, 1);

        allow(admin, topic, 2); // to write
        DefaultMQPullConsumer reader = reader("reader");
        producer.send(message(topic, "t", "second"), queue);
        try {
            reader.pull(queue, "*", 0, 32);
            throw new AssertionError("a pull from a topic that may not be read");
        } catch (MQBrokerException expected) {
            equal(NO_PERMISSION, expected.getResponseCode(), "why: " + expected);
        }
        check(noneToRead(reader, topic), "no queues of a topic that may not be read");
        Thread.sleep(500);
        int early = inbox.size(); // a pull that was held then may be answered
        check(early <= 2, "messages " + inbox.bodies());
        fact("by_a_held_pull", early - 1);

        allow(admin, topic, 6);
        awaitExactly(inbox, 2);
        ok(producer.send(message(topic, "t", "third"), queue));
        awaitExactly(inbox, 3);
        equal(Set.of("first", "second", "third"), inbox.distinct(), "messages");
    }

    private static boolean noneToRead(DefaultMQPullConsumer reader, String topic) throws Exception {
        try {
            return reader.fetchSubscribeMessageQueues(topic).isEmpty();
        } catch (MQClientException none) {
            return true;
        }
    }

    private static void allow(DefaultMQAdminExt admin, String topic, int permissions) throws Exception {
        String broker = brokerOf(admin);
        TopicConfig config = new TopicConfig(topic, 4, 4, permissions);
        admin.createAndUpdateTopicConfig(broker, config);
        await(() -> admin.examineTopicRouteInfo(topic).getQueueDatas().get(0).getPerm() == permissions,
            () -> "permissions " + permissions + " at the name server");
    }
}
