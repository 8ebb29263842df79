import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MQPullConsumerScheduleService;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullCallback;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The pull consumer: by offset, long polling, by callback, by tag; the broker stores the offsets. */
final class Pull extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of one queue
        DefaultMQProducer producer = producer();
        send(producer, topic, "even", 0, 10);
        DefaultMQPullConsumer consumer = reader("puller");
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        PullResult found = consumer.pull(queue, "*", 0, 4);
        equal(PullStatus.FOUND, found.getPullStatus(), "status");
        equal(4, found.getMsgFoundList().size(), "messages of a pull");
        equal(4L, found.getNextBeginOffset(), "next offset");
        equal(0L, found.getMinOffset(), "min offset");
        equal(10L, found.getMaxOffset(), "max offset");
        equal(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 10, 4).getPullStatus(), "at the end");
        equal(PullStatus.OFFSET_ILLEGAL, consumer.pull(queue, "*", 99, 4).getPullStatus(), "beyond the end");
        // RocketMQ's broker returns the end of the queue, Kourou its start: docs/differences.md.
        long next = consumer.pull(queue, "*", 99, 4).getNextBeginOffset();
        check(next == 10 || next == 0, "an offset of the queue is told: " + next);
        equal(PullStatus.NO_MATCHED_MSG, consumer.pull(queue, "odd", 0, 32).getPullStatus(), "no such tag");

        CompletableFuture<PullResult> called = new CompletableFuture<>();
        consumer.pull(queue, "even", 7, 32, completing(called));
        equal(3, called.get(20, TimeUnit.SECONDS).getMsgFoundList().size(), "messages of a callback");

        CompletableFuture<PullResult> waiting = new CompletableFuture<>();
        consumer.pullBlockIfNotFound(queue, "*", 10, 4, completing(waiting));
        Thread.sleep(500);
        check(!waiting.isDone(), "it waits for a message");
        send(producer, topic, "odd", 10, 11);
        PullResult came = waiting.get(20, TimeUnit.SECONDS);
        equal("10", text(came.getMsgFoundList().get(0)), "what it waited for");
        equal(List.of("10"), bodies(consumer.pullBlockIfNotFound(queue, "odd", 0, 32)), "by tag, with waiting allowed");

        // A queue that still begins at 0 is consumed from there by a group that has committed nothing.
        equal(0L, consumer.fetchConsumeOffset(queue, true), "offset before any commit");
        consumer.updateConsumeOffset(queue, 6);
        equal(6L, consumer.fetchConsumeOffset(queue, false), "offset in memory");
        consumer.persist(queue);
        await(() -> consumer.fetchConsumeOffset(queue, true) == 6, () -> "offset 6 at the broker");
        long time = found.getMsgFoundList().get(3).getStoreTimestamp();
        check(consumer.searchOffset(queue, time) <= 3, "offset of a time");
        equal(0L, consumer.searchOffset(queue, 0), "offset of the beginning");
        equal(found.getMsgFoundList().get(0).getStoreTimestamp(), consumer.earliestMsgStoreTime(queue), "earliest time");
    }

    private static PullCallback completing(CompletableFuture<PullResult> future) {
        return new PullCallback() {
            @Override public void onSuccess(PullResult result) {
                future.complete(result);
            }
            @Override public void onException(Throwable error) {
                future.completeExceptionally(error);
            }
        };
    }

    private static List<String> bodies(PullResult result) {
        List<String> bodies = new ArrayList<>();
        result.getMsgFoundList().forEach(message -> bodies.add(text(message)));
        return bodies;
    }
}

/** Helpers for both ways to use the lite pull consumer. */
abstract class LitePulling extends Feature {
    private static int instances;

    DefaultLitePullConsumer lite(String group) {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group(group));
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("lite-" + prefix + instances++);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        atEnd(consumer::shutdown);
        return consumer;
    }

    static List<String> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        await(() -> {
            for (MessageExt message : consumer.poll(200)) {
                bodies.add(text(message));
            }
            return bodies.size() >= count;
        }, () -> count + " messages, came " + bodies);
        return bodies;
    }
}

/** The lite pull consumer by subscription: tag, two members, manual commit; a new member continues there. */
final class LitePull extends LitePulling {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 4 queues
        DefaultMQProducer producer = producer();
        send(producer, topic, "yes", 0, 12);
        send(producer, topic, "no", 100, 104);
        DefaultLitePullConsumer first = lite("sharing");
        first.subscribe(topic, "yes");
        first.setAutoCommit(false);
        first.start();
        List<String> got = poll(first, 12);
        equal(12, new TreeSet<>(got).size(), "different messages " + got);
        equal(12, got.size(), "messages " + got);
        first.commitSync();
        await(() -> {
            long committed = 0;
            for (MessageQueue queue : first.assignment()) {
                Long offset = first.committed(queue);
                committed += offset == null ? 0 : Math.max(0, offset);
            }
            return committed >= 12;
        }, () -> "committed offsets");
        first.shutdown();

        send(producer, topic, "yes", 12, 20);
        DefaultLitePullConsumer second = lite("sharing");
        second.subscribe(topic, "yes");
        second.start();
        DefaultLitePullConsumer third = lite("sharing");
        third.subscribe(topic, "yes");
        third.start();
        List<String> both = new ArrayList<>();
        await(() -> {
            second.poll(100).forEach(message -> both.add(text(message)));
            third.poll(100).forEach(message -> both.add(text(message)));
            return new TreeSet<>(both).size() >= 8;
        }, () -> "8 messages, came " + both);
        check(both.stream().allMatch(body -> Integer.parseInt(body) >= 12), "what was committed: " + both);
        await(() -> second.assignment().size() == 2 && third.assignment().size() == 2, () -> "two queues each");
    }
}

/** The lite pull consumer with assigned queues: seek, time, pause, commit. */
final class LitePullAssign extends LitePulling {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 2 queues
        DefaultMQProducer producer = producer();
        List<MessageQueue> queues = new ArrayList<>(new TreeSet<>(producer.fetchPublishMessageQueues(topic)));
        equal(2, queues.size(), "queues");
        for (int number = 0; number < 10; number++) {
            ok(producer.send(message(topic, "t", "a" + number), queues.get(0)));
            ok(producer.send(message(topic, "t", "b" + number), queues.get(1)));
        }
        DefaultLitePullConsumer consumer = lite("assigned");
        consumer.setAutoCommit(false);
        consumer.start();
        equal(new TreeSet<>(queues).size(), consumer.fetchMessageQueues(topic).size(), "queues told");
        consumer.assign(queues);
        // The client may deliver messages of pulls during a seek after the seek.
        equal(20, poll(consumer, 20).size(), "all of a new group");
        consumer.seekToBegin(queues.get(0));
        consumer.seek(queues.get(1), 7);
        List<String> got = poll(consumer, 13);
        equal(List.of("b7", "b8", "b9"), only(got, "b"), "from offset 7 on");
        equal(10, only(got, "a").size(), "from the beginning " + got);

        consumer.seek(queues.get(0), 4);
        equal("a4", poll(consumer, 6).get(0), "after a seek");
        consumer.pause(Set.of(queues.get(0)));
        consumer.seekToEnd(queues.get(1));
        ok(producer.send(message(topic, "t", "a10"), queues.get(0)));
        ok(producer.send(message(topic, "t", "b10"), queues.get(1)));
        List<String> since = new ArrayList<>();
        // A pull that was held when the queue was paused may still return the first message.
        await(() -> {
            since.addAll(poll(consumer, 1));
            return since.contains("b10");
        }, () -> "b10, came " + since);
        Thread.sleep(500);
        consumer.poll(100).forEach(message -> since.add(text(message)));
        ok(producer.send(message(topic, "t", "a11"), queues.get(0)));
        consumer.poll(1500).forEach(message -> since.add(text(message)));
        check(!since.contains("a11"), "paused, it got " + since);
        fact("while_paused", since.size() - 1);
        consumer.resume(Set.of(queues.get(0)));
        await(() -> {
            since.addAll(poll(consumer, 1));
            return since.size() >= 3;
        }, () -> "the rest, came " + since);
        equal(List.of("a10", "a11"), only(since, "a"), "each once");
        consumer.commitSync();
        await(() -> {
            Long offset = consumer.committed(queues.get(0));
            return offset != null && offset == 12;
        }, () -> "offset 12, is " + consumer.committed(queues.get(0)));

        long now = System.currentTimeMillis();
        equal(0L, consumer.offsetForTimestamp(queues.get(0), 0L), "offset of the beginning");
        check(consumer.offsetForTimestamp(queues.get(0), now + 60_000) >= 10, "offset of the future");
    }

    private static List<String> only(List<String> bodies, String start) {
        List<String> found = new ArrayList<>(bodies);
        found.removeIf(body -> !body.startsWith(start));
        return found;
    }
}

/** The oldest way to pull: one repeated task per queue, which stores its offsets itself. */
@SuppressWarnings("deprecation")
final class PullSchedule extends Feature {
    @Override void run() throws Exception {
        String topic = topic("T"); // of 4 queues
        DefaultMQProducer producer = producer();
        send(producer, topic, "t", 0, 12);
        Inbox inbox = new Inbox();
        MQPullConsumerScheduleService first = scheduled(topic, inbox);
        awaitExactly(inbox, 12);
        MQPullConsumerScheduleService second = scheduled(topic, inbox);
        await(() -> queuesOf(first, topic) == 2 && queuesOf(second, topic) == 2, () -> "two queues each");
        Thread.sleep(1500); // what was on its way is saved
        int before = inbox.size(); // offsets are saved each second: a queue that moves may bring some twice
        send(producer, topic, "t", 12, 20);
        await(() -> inbox.distinct().size() == 20, () -> "20 messages, came " + inbox.bodies());
        equal(before + 8, inbox.size(), "messages");
        fact("twice", before - 12);
    }

    private MQPullConsumerScheduleService scheduled(String topic, Inbox inbox) throws Exception {
        MQPullConsumerScheduleService service = new MQPullConsumerScheduleService(group("scheduled"));
        DefaultMQPullConsumer consumer = service.getDefaultMQPullConsumer();
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("scheduled-" + System.nanoTime());
        consumer.setPersistConsumerOffsetInterval(500);
        service.registerPullTaskCallback(topic, (queue, context) -> {
            try {
                DefaultMQPullConsumer puller = (DefaultMQPullConsumer) context.getPullConsumer();
                long offset = Math.max(0, puller.fetchConsumeOffset(queue, false));
                PullResult result = puller.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    inbox.add(result.getMsgFoundList());
                }
                puller.updateConsumeOffset(queue, result.getNextBeginOffset());
                context.setPullNextDelayTimeMillis(50);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        service.start();
        atEnd(service::shutdown);
        return service;
    }

    private static long queuesOf(MQPullConsumerScheduleService service, String topic) throws Exception {
        return service.getDefaultMQPullConsumer().fetchMessageQueuesInBalance(topic).size();
    }
}

/** The lite pull consumer with an expression, from a time on; a new member continues at the committed offset. */
final class LitePullFilter extends LitePulling {
    @Override void run() throws Exception {
        String topic = topic("T"); // of one queue
        DefaultMQProducer producer = producer();
        for (int number = 0; number < 12; number++) {
            Message message = message(topic, "t", Integer.toString(number));
            message.putUserProperty("price", Integer.toString(number));
            ok(producer.send(message));
            Thread.sleep(20);
        }
        DefaultLitePullConsumer consumer = lite("filtering");
        consumer.subscribe(topic, MessageSelector.bySql("price >= 6"));
        consumer.setAutoCommit(false);
        consumer.start();
        equal(List.of("6", "7", "8", "9", "10", "11"), poll(consumer, 6), "what the expression lets through");
        MessageQueue queue = consumer.fetchMessageQueues(topic).iterator().next();
        long time = readAll(reader("reader"), topic).get(8).getStoreTimestamp();
        long offset = consumer.offsetForTimestamp(queue, time);
        equal(8L, offset, "offset of the ninth's time");
        consumer.seek(queue, offset);
        equal(List.of("8", "9", "10", "11"), poll(consumer, 4), "from its time on");
        consumer.commitSync();
        await(() -> consumer.committed(queue) == 12, () -> "offset 12, is " + consumer.committed(queue));
        for (int number = 12; number < 14; number++) {
            Message message = message(topic, "t", Integer.toString(number));
            message.putUserProperty("price", Integer.toString(number));
            ok(producer.send(message));
        }
        consumer.shutdown();
        DefaultLitePullConsumer next = lite("filtering");
        next.subscribe(topic, MessageSelector.bySql("price <> 12"));
        next.start();
        equal(List.of("13"), poll(next, 1), "where the group goes on");
    }
}
