//! ERNIE 4.5 (dense): computes what llama computes.
use super::{
    Family,
    common::{dense, uniform},
};
use crate::rotation::Rotation;

pub(super) const FAMILY: Family = Family { name: "ernie4_5", spec: |keys| uniform(keys, Rotation::Neighbours, dense) };
