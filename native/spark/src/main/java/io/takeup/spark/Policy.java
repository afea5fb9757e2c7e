package io.takeup.spark;

import java.util.Set;

/** A policy by name, with or without admission: {@code dag}, {@code lerc+admission}, {@code dag-admission}. */
final class Policy {
    private static final Set<String> NAMES = Set.of("lru", "lrc", "lerc", "mrd", "furthest_next_use", "dag");

    final String name;
    final boolean admission;

    private Policy(String name, boolean admission) {
        this.name = name;
        this.admission = admission;
    }

    static Policy parse(String text) {
        String name = text.split("[+-]", 2)[0];
        String option = text.substring(name.length());
        if (!NAMES.contains(name) || !Set.of("", "+admission", "-admission").contains(option)) {
            throw new IllegalArgumentException("there is no policy '" + text + "'; choose one of " + NAMES);
        }
        return new Policy(name, option.isEmpty() ? name.equals("dag") : option.startsWith("+"));
    }

    /** Spark decides; we only count. */
    boolean isStock() {
        return name.equals("lru");
    }

    /** Peers of a lost block hear of it. */
    boolean countsEffectively() {
        return name.equals("lerc");
    }

    @Override
    public String toString() {
        return name + (admission ? "+admission" : "");
    }
}
