import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Decides by the body: the part before the dash applies at the send, the part after it at a check. */
final class ByBody implements TransactionListener {
    final Map<String, AtomicInteger> checks = new ConcurrentHashMap<>();
    final Map<String, MessageExt> checked = new ConcurrentHashMap<>();
    volatile boolean isSilent;

    @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return state(Feature.text(message).split("-")[0]);
    }

    @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
        String body = Feature.text(message);
        int times = checks.computeIfAbsent(body, key -> new AtomicInteger()).incrementAndGet();
        checked.put(body, message);
        if (isSilent || (body.contains("late") && times < 3)) {
            return LocalTransactionState.UNKNOW;
        }
        return state(body.split("-")[1].replace("late", "commit"));
    }

    static LocalTransactionState state(String word) {
        switch (word) {
            case "commit": return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
            case "raise": throw new IllegalStateException("told to");
            default: return LocalTransactionState.UNKNOW;
        }
    }
}

/** Helpers for transactional producers. */
abstract class Transactional extends Feature {
    TransactionMQProducer transactional(String group, ByBody decisions) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group(group));
        producer.setTransactionListener(decisions);
        return producer(producer);
    }

    static TransactionSendResult sendHalf(TransactionMQProducer producer, Message message) throws Exception {
        TransactionSendResult result = producer.sendMessageInTransaction(message, null);
        ok(result);
        check(result.getTransactionId() != null, "a transaction has an id");
        return result;
    }
}

/** Committed messages are delivered once, rolled back ones never, unknown ones by the result of the check. */
final class Transaction extends Transactional {
    @Override void run() throws Exception {
        String topic = topic("T");
        ByBody decisions = new ByBody();
        TransactionMQProducer producer = transactional("tx", decisions);
        Inbox inbox = consume("taker", topic, "wanted");
        Set<String> expected = new TreeSet<>();
        for (String kind : new String[] {"commit-none", "rollback-none", "unknown-commit", "unknown-rollback",
            "unknown-late", "raise-commit"}) {
            for (int number = 0; number < 3; number++) {
                Message message = message(topic, "wanted", kind + "-" + number);
                TransactionSendResult result = sendHalf(producer, message);
                LocalTransactionState state = result.getLocalTransactionState();
                equal(stateOf(kind), state, kind);
                if (!kind.contains("rollback")) {
                    expected.add(text(message));
                }
            }
        }
        await(() -> inbox.distinct().containsAll(expected), () -> expected + ", came " + inbox.distinct());
        awaitExactly(inbox, expected.size());
        equal(expected, inbox.distinct(), "messages");
        for (MessageExt message : inbox.all()) {
            equal("true", message.getProperty("TRAN_MSG"), "TRAN_MSG");
            equal(group("tx"), message.getProperty("PGROUP"), "PGROUP");
            equal(message.getProperty("UNIQ_KEY"), message.getMsgId(), "the id");
            check(message.getPreparedTransactionOffset() > 0 || message.getSysFlag() != 0, "a commit names its half");
        }
        equal(3, decisions.checks.get("unknown-late-0").get(), "checks of a late one");
        MessageExt asked = decisions.checked.get("unknown-commit-0");
        equal(topic, asked.getTopic(), "topic in a check");
        equal("key-unknown-commit-0", asked.getKeys(), "keys in a check");
        fact("checks", decisions.checks.size());
    }

    private static LocalTransactionState stateOf(String kind) {
        if (kind.startsWith("commit")) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
        return kind.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }
}

/** Open transactions of a stopped producer are settled by another producer of its group. */
final class TransactionOrphan extends Transactional {
    @Override void run() throws Exception {
        String topic = topic("T");
        ByBody silent = new ByBody();
        silent.isSilent = true;
        TransactionMQProducer gone = transactional("tx", silent);
        sendHalf(gone, message(topic, "t", "unknown-commit-1"));
        sendHalf(gone, message(topic, "t", "unknown-rollback-2"));
        gone.shutdown();
        Inbox inbox = consume("taker", topic, "t");
        ByBody decisions = new ByBody();
        ok(transactional("tx", decisions).send(message(topic, "other", "hello"))); // so that it meets the broker
        await(() -> decisions.checks.size() == 2, () -> "two checks, came " + decisions.checks);
        awaitExactly(inbox, 1);
        equal(Set.of("unknown-commit-1"), inbox.distinct(), "messages");
    }
}
