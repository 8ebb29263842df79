import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

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
