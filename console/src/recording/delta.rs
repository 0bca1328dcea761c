//! Reports as differences from the previous report: a node reports four times a second, and its topology and most
//! of its health rarely change. A new field of a report that is missing here does not compile.
use collectives::Table;
use common::{
    fault::Fault,
    ids::{Epoch, LayerIndex, MemberIndex, Rank, TopologyHash},
    units::{Bytes, Celsius, Milliwatts, Nanoseconds},
};
use serde::{Deserialize, Deserializer, Serialize};
use telemetry::{
    Health, HopSync, KvUse, Lateness, LayerSync, LoadProgress, Measured, NodeReport, NodeState, RequestReport,
    StoreUse, SyncKind,
    health::{Clock, DiskUse, Hardware, LoadByOthers, MemoryUse, NetworkLink, RunQueue, ThrottleBits, Traffic},
};
use topology::{Exclusions, Rolling, Topology};

/// Keeps a field that is present apart from a missing one, even if its value is null.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Declares the type that holds the changed fields of another type: `plain` fields as they are, `later` fields that
/// older recordings lack, `packed` fields in another form, `nested` fields as deltas of their own.
macro_rules! delta {
    (
        $(#[$doc:meta])*
        $name:ident of $whole:ident {
            plain { $($plain:ident: $plain_type:ty),* $(,)? }
            later { $($later:ident: $later_type:ty),* $(,)? }
            packed { $($packed:ident: $packed_type:ty),* $(,)? }
            nested { $($nested:ident: $nested_type:ty),* $(,)? }
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $(#[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
            $plain: Option<$plain_type>,)*
            $(#[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
            $later: Option<$later_type>,)*
            $(#[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
            $packed: Option<$packed_type>,)*
            $(#[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
            $nested: Option<$nested_type>,)*
        }

        impl $name {
            /// The fields that changed in `after`; without a previous value, all fields.
            pub(crate) fn between(before: Option<&$whole>, after: &$whole) -> Self {
                let $whole { $($plain,)* $($later,)* $($packed,)* $($nested,)* } = after;
                Self {
                    $($plain: (before.map(|before| &before.$plain) != Some($plain)).then(|| $plain.clone()),)*
                    $($later: (before.map_or($later != &<$later_type>::default(), |before| before.$later != *$later))
                        .then(|| $later.clone()),)*
                    $($packed: (before.map(|before| &before.$packed) != Some($packed)).then(|| $packed.clone().into()),)*
                    $($nested: (before.map(|before| &before.$nested) != Some($nested))
                        .then(|| <$nested_type>::between(before.map(|before| &before.$nested), $nested)),)*
                }
            }

            /// The value after applying this delta to the previous value.
            ///
            /// # Errors
            /// The name of a field that is missing both here and in the previous value.
            pub(crate) fn apply(self, before: Option<$whole>) -> Result<$whole, &'static str> {
                match before {
                    Some(mut whole) => {
                        $(if let Some(value) = self.$plain { whole.$plain = value; })*
                        $(if let Some(value) = self.$later { whole.$later = value; })*
                        $(if let Some(value) = self.$packed { whole.$packed = value.into(); })*
                        $(if let Some(value) = self.$nested {
                            whole.$nested = value.apply(Some(std::mem::take(&mut whole.$nested)))?;
                        })*
                        Ok(whole)
                    }
                    None => Ok($whole {
                        $($plain: self.$plain.ok_or(stringify!($plain))?,)*
                        $($later: self.$later.unwrap_or_default(),)*
                        $($packed: self.$packed.ok_or(stringify!($packed))?.into(),)*
                        $($nested: self.$nested.ok_or(stringify!($nested))?.apply(None)?,)*
                    }),
                }
            }
        }
    };
}

delta! {
    /// The changed fields of a report.
    ReportDelta of NodeReport {
        plain {
            name: String,
            instance: u64,
            supervised: bool,
            unix_ms: u64,
            build: String,
            kernels: String,
            state: NodeState,
            epoch: Epoch,
            topology: Option<(Topology, TopologyHash, MemberIndex)>,
            fault: Option<Fault>,
            load: Option<LoadProgress>,
            shard: Bytes,
            memory_resident: Bytes,
            requests: u32,
            traces: Vec<RequestReport>,
            tokens: u64,
            kv: Option<KvUse>,
            lateness: Vec<Lateness>,
            collectives: Option<Table>,
            exclusions: Exclusions,
            recovers: bool,
            rolling: Option<Rolling>,
        }
        later { hops: Vec<HopSync>, desired: Option<Box<Topology>>, measured: Measured, neighbours: Vec<String>, unloaded: Option<(Epoch, TopologyHash)>, expected: Option<Box<Topology>>, store: Option<StoreUse>, memory_max: Option<Bytes> }
        packed { layers: Rows }
        nested { health: HealthDelta }
    }
}

delta! {
    /// The changed fields of a machine's health.
    HealthDelta of Health {
        plain {
            temperature: Option<Celsius>,
            clock: Option<Clock>,
            firmware: Option<ThrottleBits>,
            is_voltage_low: Option<bool>,
            memory: Option<MemoryUse>,
            disk: Option<DiskUse>,
            link: Option<NetworkLink>,
            tcp: Option<Traffic>,
            load: Option<LoadByOthers>,
            run_queue: Option<RunQueue>,
            is_time_synchronized: Option<bool>,
            page: Option<Bytes>,
        }
        later { power: Option<Milliwatts>, hardware: Option<Hardware> }
        packed {}
        nested {}
    }
}

/// Layer timings as rows of numbers: layer, kind, count, p50, p95, p99, compute, wait, wire, slowest rank; times in
/// nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rows(Vec<SyncRow>);

/// One row, in the order of [`Rows`].
type SyncRow = (u32, u8, u32, u64, u64, u64, u64, u64, u64, u16);

impl From<Vec<LayerSync>> for Rows {
    fn from(layers: Vec<LayerSync>) -> Self {
        Self(
            layers
                .into_iter()
                .map(|sync: LayerSync| {
                    let LayerSync { layer, kind, count, p50, p95, p99, compute, wait, wire, slowest } = sync;
                    let kind = u8::from(kind == SyncKind::FeedForward);
                    (layer.0, kind, count, p50.0, p95.0, p99.0, compute.0, wait.0, wire.0, slowest.0)
                })
                .collect(),
        )
    }
}

impl From<Rows> for Vec<LayerSync> {
    fn from(rows: Rows) -> Self {
        let syncs = rows.0.into_iter().map(|row| {
            let (layer, kind, count, p50, p95, p99, compute, wait, wire, slowest) = row;
            LayerSync {
                layer: LayerIndex(layer),
                kind: if kind == 0 { SyncKind::Attention } else { SyncKind::FeedForward },
                count,
                p50: Nanoseconds(p50),
                p95: Nanoseconds(p95),
                p99: Nanoseconds(p99),
                compute: Nanoseconds(compute),
                wait: Nanoseconds(wait),
                wire: Nanoseconds(wire),
                slowest: Rank(slowest),
            }
        });
        syncs.collect()
    }
}
