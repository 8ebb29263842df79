import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Constructor;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Runs features, and prints the result of each as a line of JSON.
 *
 *   Features NAMESRV FEATURE PREFIX   runs one; exits with 0 or 1
 *   Features -                        runs one per line of stdin (the same words, separated by blanks), many at a time
 */
public final class Features {
    private static final PrintStream ANSWERS = System.out;

    private Features() { }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); // of 20 s
        System.setProperty("rocketmq.client.rebalance.lockInterval", "2000"); // of 20 s
        if (!args[0].equals("-")) {
            System.exit(run(args[0], args[1], args[2]) ? 0 : 1);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            new Thread(() -> run(words[0], words[1], words[2]), words[1]).start();
        }
        System.exit(0);
    }

    private static boolean run(String namesrv, String name, String prefix) {
        long start = System.currentTimeMillis();
        StringWriter failure = new StringWriter();
        Feature feature = null;
        try {
            Constructor<?> made = Class.forName(name).getDeclaredConstructor();
            made.setAccessible(true);
            feature = (Feature) made.newInstance();
            feature.namesrv = namesrv;
            feature.prefix = prefix;
            feature.run();
        } catch (Throwable error) {
            error.printStackTrace(new PrintWriter(failure, true));
        }
        String facts = feature == null ? "" : facts(feature);
        try {
            if (feature != null) {
                feature.close();
            }
        } catch (Throwable error) {
            error.printStackTrace(new PrintWriter(failure, true));
        }
        boolean isRight = failure.toString().isEmpty();
        synchronized (ANSWERS) {
            ANSWERS.println("{\"feature\": " + quoted(name) + ", \"prefix\": " + quoted(prefix)
                + ", \"ok\": " + isRight + ", \"ms\": " + (System.currentTimeMillis() - start)
                + ", \"facts\": {" + facts + "}, \"failure\": " + quoted(failure.toString()) + "}");
            ANSWERS.flush();
        }
        return isRight;
    }

    private static String facts(Feature feature) {
        StringBuilder text = new StringBuilder();
        for (Map.Entry<String, Object> fact : feature.facts.entrySet()) {
            text.append(text.length() == 0 ? "" : ", ").append(quoted(fact.getKey())).append(": ")
                .append(fact.getValue() instanceof Number ? fact.getValue().toString() : quoted("" + fact.getValue()));
        }
        return text.toString();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
