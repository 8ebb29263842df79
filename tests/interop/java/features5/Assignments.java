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
        tell(first);
        tell(second);
        send(producer, topic, "a", 0, 8);
        awaitExactly(inbox, 8);
        Thread.sleep(3000); // some heartbeats more
        equal("a", wanted(admin, topic), "what the group wants");
        send(producer, topic, "b", 100, 104);
        send(producer, topic, "a", 8, 16);
        awaitExactly(inbox, 16);
        second.shutdown();
        await(() -> owned(first, topic).size() == 4, () -> "all queues");
        tell(first);
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

    /** The client skips the heartbeat that tells of new queues if another is under way; RocketMQ's broker then refuses its pulls. */
    private static void tell(DefaultMQPushConsumer member) throws Exception {
        await(
            () -> member.getDefaultMQPushConsumerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLockV2(true),
            () -> "a heartbeat");
    }

    private String wanted(DefaultMQAdminExt admin, String topic) throws Exception {
        return admin.examineConsumerConnectionInfo(group("short")).getSubscriptionTable().get(topic).getSubString();
    }
}

/** A member whose subscription is newer than the broker knows, as after a heartbeat that was skipped, consumes on. */
final class SkippedHeartbeat extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 4 queues
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("skipping");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        await(() -> owned(consumer, topic).size() == 4, () -> "all queues");
        send(producer, topic, "t", 0, 4);
        awaitExactly(inbox, 4);
        long began = System.currentTimeMillis();
        consumer.getDefaultMQPushConsumerImpl().getSubscriptionInner().get(topic).setSubVersion(began);
        send(producer, topic, "t", 4, 8); // answers the pulls of before
        awaitExactly(inbox, 8);
        send(producer, topic, "t", 8, 12);
        awaitExactly(inbox, 12);
        fact("stood_still_ms", System.currentTimeMillis() - began); // until the next heartbeat on RocketMQ's broker
        equal(12, inbox.distinct().size(), "different messages");
    }
}
