import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;

/** All members of a broadcasting group receive every message; a restarted one continues at its offset. */
final class Broadcast extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox one = new Inbox();
        Inbox two = new Inbox();
        DefaultMQPushConsumer first = member(topic, one, "b1" + prefix + System.nanoTime());
        DefaultMQPushConsumer second = member(topic, two, "b2" + prefix + System.nanoTime());
        await(() -> owned(first, topic).size() == 4 && owned(second, topic).size() == 4, () -> "all queues each");
        send(producer, topic, "t", 0, 12);
        awaitExactly(one, 12);
        awaitExactly(two, 12);
        second.shutdown(); // saves its offsets
        send(producer, topic, "t", 12, 20);
        Inbox again = new Inbox();
        member(topic, again, second.getInstanceName());
        awaitExactly(again, 8);
        awaitExactly(one, 20);
    }

    private DefaultMQPushConsumer member(String topic, Inbox inbox, String instance) throws Exception {
        DefaultMQPushConsumer consumer = consumer("everyone");
        setModel(consumer, "BROADCASTING");
        consumer.setInstanceName(instance);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(taking(inbox));
        return start(consumer);
    }
}

/** Each strategy divides the queues among members; all messages are delivered once. */
final class Allocation extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 7 queues
        Map<String, AllocateMessageQueueStrategy> strategies = new LinkedHashMap<>();
        strategies.put("averagely", new AllocateMessageQueueAveragely());
        strategies.put("circle", new AllocateMessageQueueAveragelyByCircle());
        strategies.put("hash", new AllocateMessageQueueConsistentHash());
        strategies.put("nearby", new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMachineRoomNearby.MachineRoomResolver() {
                @Override public String brokerDeployIn(MessageQueue queue) {
                    return queue.getQueueId() % 2 == 0 ? "even" : "odd";
                }
                @Override public String consumerDeployIn(String clientId) {
                    return clientId.hashCode() % 2 == 0 ? "even" : "odd";
                }
            }));
        strategies.put("room", room("room-1")); // the brokers are named room-1@...
        DefaultMQProducer producer = producer();
        List<MessageQueue> queues = new ArrayList<>(new TreeSet<>(producer.fetchPublishMessageQueues(topic)));
        equal(7, queues.size(), "queues");
        check(room("room-2").allocate("g", "a", queues, List.of("a")).isEmpty(), "queues are in the first room");
        Map<String, Inbox> inboxes = new LinkedHashMap<>();
        for (String name : strategies.keySet()) {
            inboxes.put(name, share(topic, name, strategies.get(name), queues));
        }
        inboxes.put("config", byConfig(topic, queues));
        send(producer, topic, "t", 0, 21);
        for (Map.Entry<String, Inbox> inbox : inboxes.entrySet()) {
            int count = inbox.getKey().equals("config") ? 6 : 21;
            awaitExactly(inbox.getValue(), count);
            equal(count, inbox.getValue().distinct().size(), "different messages by " + inbox.getKey());
        }
    }

    private static AllocateMessageQueueStrategy room(String name) {
        AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
        strategy.setConsumeridcs(Set.of(name));
        return strategy;
    }

    private Inbox share(String topic, String name, AllocateMessageQueueStrategy strategy, List<MessageQueue> queues)
            throws Exception {
        Inbox inbox = new Inbox();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            members.add(member(topic, name, strategy, inbox));
        }
        List<String> ids = new ArrayList<>(new TreeSet<>(ids(members)));
        equal(3, ids.size(), "client ids");
        for (DefaultMQPushConsumer member : members) {
            Set<MessageQueue> expected = new TreeSet<>(
                strategy.allocate(group(name), clientId(member), queues, ids));
            await(() -> owned(member, topic).equals(expected),
                () -> name + ": " + expected + ", has " + owned(member, topic));
        }
        return inbox;
    }

    private Inbox byConfig(String topic, List<MessageQueue> queues) throws Exception {
        AllocateMessageQueueByConfig strategy = new AllocateMessageQueueByConfig();
        strategy.setMessageQueueList(queues.subList(2, 4));
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer member = member(topic, "config", strategy, inbox);
        await(() -> owned(member, topic).equals(new TreeSet<>(queues.subList(2, 4))),
            () -> "its two queues, has " + owned(member, topic));
        return inbox;
    }

    private DefaultMQPushConsumer member(String topic, String name, AllocateMessageQueueStrategy strategy,
            Inbox inbox) throws Exception {
        DefaultMQPushConsumer member = consumer(name);
        member.setAllocateMessageQueueStrategy(strategy);
        member.subscribe(topic, "*");
        member.registerMessageListener(taking(inbox));
        return start(member);
    }

    private static List<String> ids(List<DefaultMQPushConsumer> members) {
        List<String> ids = new ArrayList<>();
        members.forEach(member -> ids.add(clientId(member)));
        return ids;
    }
}

/** A suspended consumer receives nothing, and continues when resumed; its pool size can be changed. */
final class Suspend extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.subscribe(topic, "*");
        consumer.setPullThresholdForTopic(40);
        consumer.setPullThresholdForQueue(10);
        consumer.setPullInterval(10);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(4);
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        send(producer, topic, "t", 0, 5);
        awaitExactly(inbox, 5);
        consumer.suspend();
        // Currently held pulls still return the next message of their queues.
        send(producer, topic, "t", 5, 105);
        Thread.sleep(1500);
        int held = inbox.size();
        check(held < 105, "suspended, it got " + held + " messages");
        Thread.sleep(500);
        equal(held, inbox.size(), "messages while it is suspended");
        consumer.updateCorePoolSize(3);
        consumer.resume();
        awaitExactly(inbox, 105);
        fact("while_suspended", held - 5);
    }
}

/** A running consumer subscribes to a new topic, from its beginning, and unsubscribes from the old one. */
final class Resubscribe extends Feature {
    @Override void run() throws Exception {
        String first = topic("First");
        String second = topic("Second");
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(first, "*");
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        send(producer, first, "t", 0, 4);
        send(producer, second, "t", 4, 8);
        awaitExactly(inbox, 4);
        consumer.subscribe(second, "t");
        awaitExactly(inbox, 8);
        consumer.unsubscribe(first);
        await(() -> owned(consumer, first).isEmpty(), () -> "no queue of the first, has " + owned(consumer, first));
        send(producer, first, "t", 8, 12);
        send(producer, second, "t", 12, 16);
        await(() -> inbox.size() >= 12, () -> "12 messages, came " + inbox.bodies());
        Thread.sleep(1000);
        check(inbox.bodies().stream().noneMatch(body -> body.matches("8|9|10|11")), "messages " + inbox.bodies());
        consumer.subscribe(first, "*");
        await(() -> inbox.distinct().size() == 16, () -> "16 messages, came " + inbox.bodies());
        fact("again", inbox.size() - 16); // a client that leaves a topic may forget where it was
    }
}
