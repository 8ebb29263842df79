import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Members ask the broker for their queues, share them, and take over what one leaves. */
final class ServerAssignment extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 4 queues
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = member(topic, inbox);
        await(() -> owned(first, topic).size() == 4, () -> "all queues, has " + owned(first, topic));
        DefaultMQPushConsumer second = member(topic, inbox);
        await(() -> owned(first, topic).size() == 2 && owned(second, topic).size() == 2, () -> "two queues each");
        Set<MessageQueue> all = new TreeSet<>(owned(first, topic));
        all.addAll(owned(second, topic));
        equal(4, all.size(), "queues of both");
        int parity = owned(first, topic).iterator().next().getQueueId() % 2;
        check(owned(first, topic).stream().allMatch(queue -> queue.getQueueId() % 2 == parity), "by circle");
        send(producer, topic, "t", 0, 12);
        awaitExactly(inbox, 12);
        second.shutdown();
        await(() -> owned(first, topic).size() == 4, () -> "all queues again");
        send(producer, topic, "t", 12, 20);
        awaitExactly(inbox, 20);
        equal(20, inbox.distinct().size(), "different messages");
    }

    private DefaultMQPushConsumer member(String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = consumer("served");
        consumer.setClientRebalance(false);
        consumer.setAllocateMessageQueueStrategy(new AllocateMessageQueueAveragelyByCircle());
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        return start(consumer);
    }
}

/** Members that send short heartbeats, which do not name their subscriptions each time. */
final class ShortHeartbeats extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 4 queues
        DefaultMQProducer producer = producer();
        DefaultMQAdminExt admin = admin();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer first = member(topic, inbox);
        DefaultMQPushConsumer second = member(topic, inbox);
        await(() -> owned(first, topic).size() == 2 && owned(second, topic).size() == 2, () -> "two queues each");
        send(producer, topic, "a", 0, 8);
        awaitExactly(inbox, 8);
        Thread.sleep(3000); // some heartbeats more
        equal("a", wanted(admin, topic), "what the group wants");
        send(producer, topic, "b", 100, 104);
        send(producer, topic, "a", 8, 16);
        awaitExactly(inbox, 16);
        second.shutdown();
        await(() -> owned(first, topic).size() == 4, () -> "all queues");
        send(producer, topic, "a", 16, 20);
        awaitExactly(inbox, 20);
        equal(20, inbox.distinct().size(), "different messages");
    }

    private DefaultMQPushConsumer member(String topic, Inbox inbox) throws Exception {
        DefaultMQPushConsumer consumer = consumer("short");
        consumer.setUseHeartbeatV2(true);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(topic, "a");
        consumer.registerMessageListener(taking(inbox));
        return start(consumer);
    }

    private String wanted(DefaultMQAdminExt admin, String topic) throws Exception {
        return admin.examineConsumerConnectionInfo(group("short")).getSubscriptionTable().get(topic).getSubString();
    }
}
