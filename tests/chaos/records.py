"""Faults as JSON lines, one per fault, and the table of many of them. Lines of several runs add up."""
import collections
import csv
import json

import bramble

# Longest time from the end of a fault until all serve again, in seconds: of 95 % of all faults.
BACK_SECONDS = 10
# How requests end that got what they asked for; invalid ones are refused.
AS_WANTED = ("right", "cancelled", "refused")
# The fault ended the node to which the client was connected.
OWN = "connection"
# Violations at the end of a cluster, recorded like a fault but not counted as one.
LEFT = "end of the cluster"


class Records:
    """Appends faults to a file, each written at once, so that nothing is lost if the program is stopped."""

    def __init__(self, path):
        self.path, self.rows = path, []

    def add(self, row):
        self.rows.append(row)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row, separators=(",", ":")) + "\n")


# Columns of the compact form, in which results are kept in the repository.
COLUMNS = ("day", "layout", "links", "kind", "seed", "number", "back", "late", "ended", "violations")


def read(paths):
    """The faults in files of JSON lines or of the compact form; a last line that was cut off is left out."""
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            if path.endswith(".csv"):
                rows += [expanded(row) for row in csv.DictReader(file)]
            else:
                rows += [json.loads(line) for line in file if line.endswith("\n")]
    return rows


def write_compact(rows, path):
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(COLUMNS)
        for row in rows:
            ended = " ".join(f"{code}:{count}" for code, count in sorted(row["ended"].items()) if count)
            times = ["" if row.get(key) is None else round(row[key], 1) for key in ("back_seconds", "late_seconds")]
            out.writerow([row["at"][:10], row["layout"], row["links"], row["kind"], row["seed"], row["number"], *times, ended, "; ".join(row["violations"])])


def expanded(row):
    """A fault of the compact form."""
    ended = {code: int(count) for code, _, count in (part.rpartition(":") for part in row["ended"].split())}
    number = lambda text: float(text) if text else None
    return {
        "at": row["day"], "layout": row["layout"], "links": row["links"], "kind": row["kind"], "seed": int(row["seed"]), "number": int(row["number"]),
        "back_seconds": number(row["back"]), "late_seconds": number(row["late"]), "ended": ended,
        "violations": [row["violations"]] if row["violations"] else [],
    }


def faults(rows):
    return [row for row in rows if row["kind"] != LEFT]


def figures(rows):
    """Counts and times of a list of faults; a fault without recovery in time counts with its late time, or 60 s."""
    times = sorted(row["back_seconds"] if row["back_seconds"] is not None else row.get("late_seconds") or 60.0 for row in rows)
    at = {name: round(bramble.quantile(times, share), 1) if times else None for name, share in (("p50", 0.5), ("p95", 0.95))}
    ended = collections.Counter()
    for row in rows:
        ended.update(row["ended"])
    count = sum(ended.values())
    return {
        "faults": len(rows), **at, "max": round(times[-1], 1) if times else None,
        "not_recovered": sum(row["back_seconds"] is None for row in rows), "requests": count, "whole": sum(ended[code] for code in AS_WANTED),
        "hangs": ended["hang"], "wrong": ended["wrong"], "own": ended[OWN],
        "errors": {code: number for code, number in sorted(ended.items()) if code not in (*AS_WANTED, OWN, "hang", "wrong")},
    }


def grouped(rows, key):
    groups = collections.defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return sorted(groups.items())


def line(name, one):
    times = " | ".join("–" if one[key] is None else f"{one[key]:.1f}" for key in ("p50", "p95", "max"))
    return f"| {name} | {one['faults']} | {times} | {one['not_recovered']} | {one['requests']} | {one['whole']} | {sum(one['errors'].values())} | {one['own']} | {one['hangs']} | {one['wrong']} |"


def table(rows):
    """The table in Markdown: by layout and protection, by kind of fault, and each layout with each kind."""
    rows = faults(rows)
    head = "| {} | faults | p50 s | p95 s | max s | not back | requests | whole | one typed error | own node ended | hangs | wrong |"
    rule = "|---|" + "---|" * 11
    lines = [head.format("layout, links"), rule]
    lines += [line(name, figures(group)) for name, group in grouped(rows, lambda row: f"{row['layout']}, {row['links']}")]
    lines += ["", head.format("fault"), rule]
    lines += [line(name, figures(group)) for name, group in grouped(rows, lambda row: row["kind"])]
    lines += [line("**all**", figures(rows)), "", *matrix(rows)]
    codes = figures(rows)["errors"]
    lines += ["", "Typed errors: " + (", ".join(f"`{code}` {count}" for code, count in codes.items()) or "none") + "."]
    return "\n".join(lines)


def matrix(rows):
    """Count, median, 95th percentile and maximum of each layout with each kind."""
    layouts = sorted({row["layout"] for row in rows})
    lines = ["| count: p50/p95/max s | " + " | ".join(layouts) + " |", "|---|" + "---|" * len(layouts)]
    for kind, group in grouped(rows, lambda row: row["kind"]):
        cells = []
        for layout in layouts:
            one = figures([row for row in group if row["layout"] == layout])
            cells.append(f"{one['faults']}: {one['p50']}/{one['p95']}/{one['max']}" if one["faults"] else "–")
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def broken(rows):
    """Violations and missed goals, one line each."""
    found = [f"{row['layout']}, {row['links']}, seed {row['seed']}, fault {row['number']}, {row['kind']}: {text}" for row in rows for text in row["violations"]]
    one = figures(faults(rows))
    if one["p95"] is not None and one["p95"] > BACK_SECONDS:
        found.append(f"p95 until all serve again is {one['p95']} s, wanted at most {BACK_SECONDS}")
    return found
