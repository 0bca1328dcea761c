//! Everything that is tested from outside the crates, as one binary: it links once.

// Bad input gets one clear error and the daemons stay up.
mod bad_input;
// Measuring nodes and this machine.
mod bench;
// A slow node is taken out by itself and tried again.
mod breaker;
// What model files hold is compared, not only their names and headers; one process per state folder.
mod content;
// The dashboard in a real terminal.
mod dashboard;
// The demo: daemons, one text or the dashboard, nothing left behind.
mod demo;
// Nodes that are found without being named.
mod discovery;
// Mixtures of experts on n ranks against the oracle and against one.
mod experts;
// Groups that compute prompts for groups that answer.
mod disaggregation;
// The OpenAI API of real daemons.
mod gateway;
// Overload, lost nodes, nodes without a shard, as clients see them.
mod gateway_loss;
// Which head continues an answer, and when it ends as an error.
mod gateway_answers;
// What clients may ask for, and what is refused.
mod gateway_requests;
// Web pages, slow clients and clients with too much to say.
mod gateway_strangers;
// A text from one daemon or several.
mod generate;
// GGUF files with every defect are refused by name.
mod gguf_hostile;
// What the writer writes, the reader reads: both versions, single files and splits.
mod gguf_round_trip;
// Splits that are missing, misnamed or of different models.
mod gguf_splits;
// Answers that must have a form.
mod grammar;
// Nodes of one of two replicas excluded, included, killed and restarted; layouts that change while clients stream.
mod incidents;
// What machines say of themselves.
mod health;
// Alerts and dashboards for metrics.
mod monitoring;
// Model files between servers, nodes and consoles.
mod models;
// Nodes without a key get one, or another.
mod adopt;
// Excluded nodes with a full disk, and cordons as clients see them.
mod cordon;
// Cluster keys: who may come, and what is refused.
mod keys;
// Links between nodes, measured by them.
mod links;
// The default layout when none is requested.
mod default_layout;
// Links that flip bits.
mod damage;
// Nodes that die, hang, drain and come back.
mod loss;
// Restart, exclusion and the straggler, as an operator does and sees them.
mod operate;
// The same in tmux, with all that it does to the terminal.
mod operator;
// Packed shards from one start to the next.
mod packed;
// Nodes that wait instead of computing.
mod paced;
// What the planner expects of memory against what the daemon's preflight asks for.
mod planning;
mod profile;
// n ranks against the oracle and against one.
mod ranks;
// Sessions that are written and played.
mod recording;
// Topologies that come back by themselves.
mod recovery;
// Logits against reference outputs.
mod reference;
// What the holder of a role's key can take of a node.
mod roles;
// Rolling restarts that nodes drive, nodes that join, consoles that are stopped.
mod rolling;
// The runbook's commands.
mod runbook;
// Requests on one engine: resumed, beside each other, from what was computed before.
mod serving;
// The straggler's rule over recorded runs.
mod straggler;
// Chat templates.
mod templates;
// The house rules.
mod tidy;
// Pipelines, replicas, unequal shares.
mod topologies;
// Texts and ids of real vocabularies, there and back.
mod tokenizer_vectors;
// What changes nothing unasked.
mod unasked;
// Schemas, templates and prompts that break libraries.
mod untrusted;
// Programs of an earlier release.
mod versions;
// The formats of weights: there and back, and against bytes worked out by hand.
mod weight_formats;
