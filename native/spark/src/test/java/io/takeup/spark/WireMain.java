package io.takeup.spark;

import java.util.Arrays;
import java.util.List;
import java.util.Random;

/** Messages of all kinds, with random contents, come back as they were; says how many. */
public final class WireMain {
    private static final Random RANDOM = new Random(1);

    private WireMain() {}

    public static void main(String[] arguments) {
        int numMessages = Integer.parseInt(arguments[0]);
        for (int number = 0; number < numMessages; number++) {
            Object[] message = Messages.all(List.of(
                    Messages.open(List.of(new GroupTable.Group(-1L, longs(), RANDOM.nextDouble(), RANDOM.nextInt()))),
                    Messages.lineage(longs(), new long[][] {longs(), longs()}),
                    Messages.close(longs()),
                    Messages.state(longs(), longs(), longs()),
                    Messages.forget(longs()),
                    Messages.expect(RANDOM.nextInt(), 8, Double.POSITIVE_INFINITY, RANDOM.nextDouble(), -1)));
            Object[] packed = Messages.packed(message);
            if (!Arrays.deepEquals(message, Wire.unpacked((byte[]) packed[1]))) {
                throw new AssertionError(Arrays.deepToString(message));
            }
        }
        System.out.println(numMessages);
    }

    private static long[] longs() {
        return RANDOM.longs(RANDOM.nextInt(5)).toArray();
    }
}
