import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Several tags, and tags with equal hash codes: only requested messages are delivered. */
final class TagFilter extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        for (String tag : new String[] {"Aa", "BB", "other", "third"}) { // Aa and BB have one hash code
            ok(producer.send(message(topic, tag, tag)));
        }
        Inbox inbox = consume("taker", topic, "Aa || third");
        awaitExactly(inbox, 2);
        equal(Set.of("Aa", "third"), inbox.distinct(), "messages");
        ok(producer.send(message(topic, "BB", "again-BB")));
        ok(producer.send(message(topic, "third", "again-third")));
        awaitExactly(inbox, 3);
    }
}

/** SQL filters at the broker: by value, absent properties, held pulls, and pulls; invalid ones are refused. */
final class SqlFilter extends Feature {
    private static final String SQL =
        "(price BETWEEN 3 AND 6 OR colour = 'red') AND hidden IS NULL AND TAGS IN ('a', 'b')";

    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Set<String> expected = send(producer, topic, 0, 20);
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.subscribe(topic, MessageSelector.bySql(SQL));
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        awaitExactly(inbox, expected.size());
        equal(expected, inbox.distinct(), "messages");
        expected.addAll(send(producer, topic, 20, 40)); // these meet pulls that wait
        awaitExactly(inbox, expected.size());
        equal(expected, inbox.distinct(), "messages");

        DefaultMQPullConsumer reader = reader("reader");
        MessageSelector dear = MessageSelector.bySql("price > 17");
        Set<MessageQueue> queues = reader.fetchSubscribeMessageQueues(topic);
        await(() -> knowsVersion(reader, queues.iterator().next(), dear), () -> "the broker's version");
        Set<String> pulled = new TreeSet<>();
        for (MessageQueue queue : queues) {
            long offset = reader.minOffset(queue);
            while (offset < reader.maxOffset(queue)) {
                PullResult result = reader.pull(queue, dear, offset, 32);
                if (result.getMsgFoundList() != null) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        pulled.add(text(message));
                    }
                }
                offset = result.getNextBeginOffset();
            }
        }
        equal(Set.of("18", "19", "38", "39"), pulled, "pulled by an expression");
        refused(topic, "price >");
        refused(topic, "price > 'text'");
    }

    /** The client uses expressions only after an answered heartbeat, which this one sends each second. */
    private static boolean knowsVersion(DefaultMQPullConsumer reader, MessageQueue queue, MessageSelector selector)
            throws Exception {
        try {
            reader.pull(queue, selector, 0, 1);
            return true;
        } catch (MQClientException unknown) {
            check(unknown.getMessage().contains("does not upgrade"), "why: " + unknown);
            return false;
        }
    }

    private Set<String> send(DefaultMQProducer producer, String topic, int from, int to) throws Exception {
        Set<String> expected = new TreeSet<>();
        for (int number = from; number < to; number++) {
            int price = number % 20;
            Message message = message(topic, price % 3 == 0 ? "a" : "b", Integer.toString(number));
            message.putUserProperty("price", Integer.toString(price));
            if (price % 5 == 0) {
                message.putUserProperty("colour", "red");
            }
            if (price == 5 || price == 10) {
                message.putUserProperty("hidden", "yes");
            }
            ok(producer.send(message));
            boolean isWanted = (price >= 3 && price <= 6) || price % 5 == 0;
            if (isWanted && price != 5 && price != 10) {
                expected.add(text(message));
            }
        }
        return expected;
    }

    private void refused(String topic, String sql) throws Exception {
        DefaultMQPushConsumer consumer = consumer("refused");
        consumer.subscribe(topic, MessageSelector.bySql(sql));
        consumer.registerMessageListener(taking(new Inbox()));
        try {
            consumer.start();
            throw new AssertionError("started with the expression " + sql);
        } catch (MQClientException expected) {
            String said = "" + expected;
            Throwable cause = expected;
            while (cause.getCause() != null) {
                cause = cause.getCause();
                said += " " + cause;
            }
            check(said.contains("23") || said.contains("PARSE"), "it says why: " + said);
        } finally {
            consumer.shutdown();
        }
    }
}

/** A consumer that changes its expression at run time receives all later messages that match the new one. */
final class SqlChange extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox inbox = new Inbox();
        DefaultMQPushConsumer consumer = consumer("taker");
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.subscribe(topic, MessageSelector.bySql("price < 3"));
        consumer.registerMessageListener(taking(inbox));
        start(consumer);
        DefaultMQAdminExt admin = admin();
        priced(producer, topic, "a");
        awaitExactly(inbox, 3);
        equal(Set.of("a0", "a1", "a2"), inbox.distinct(), "messages");

        consumer.subscribe(topic, MessageSelector.bySql("price >= 3"));
        await(() -> wanted(admin, consumer, topic).equals("price >= 3"), () -> "the broker knows it");
        priced(producer, topic, "b"); // requests that wait by the old one may hold them up
        await(() -> inbox.distinct().containsAll(Set.of("b3", "b4", "b5")), () -> "b3 to b5, came " + inbox.bodies());
        Thread.sleep(500);
        check(inbox.bodies().stream().noneMatch(body -> body.matches("b[0-2]")), "messages " + inbox.bodies());

        consumer.subscribe(topic, "t"); // a tag: no expression at all
        await(() -> wanted(admin, consumer, topic).equals("t"), () -> "the broker knows that");
        priced(producer, topic, "c");
        await(() -> inbox.bodies().stream().filter(body -> body.startsWith("c")).count() >= 6,
            () -> "c0 to c5, came " + inbox.bodies());
        Thread.sleep(500);
        equal(inbox.size(), inbox.distinct().size(), "different messages of " + inbox.bodies());
        fact("passed_over_before", inbox.size() - 12); // at the ends of queues, where requests waited
    }

    private static String wanted(DefaultMQAdminExt admin, DefaultMQPushConsumer consumer, String topic) throws Exception {
        var connection = admin.examineConsumerConnectionInfo(consumer.getConsumerGroup());
        return connection.getSubscriptionTable().get(topic).getSubString();
    }

    private static void priced(DefaultMQProducer producer, String topic, String prefix) throws Exception {
        for (int price = 0; price < 6; price++) {
            Message message = message(topic, "t", prefix + price);
            message.putUserProperty("price", Integer.toString(price));
            ok(producer.send(message));
        }
    }
}

/** Class filters are no longer supported: nothing is delivered by them, and other consumers continue. */
@SuppressWarnings("deprecation")
final class ClassFilter extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T");
        DefaultMQProducer producer = producer();
        Inbox filtered = new Inbox();
        DefaultMQPushConsumer consumer = consumer("classy");
        consumer.subscribe(topic, "example.Filter", "package example; class Filter { }");
        consumer.registerMessageListener(taking(filtered));
        start(consumer);
        Inbox inbox = consume("taker", topic, "*");
        send(producer, topic, "t", 0, 4);
        awaitExactly(inbox, 4);
        Thread.sleep(1000);
        fact("by_class", filtered.size());
    }
}
