//! Messages that a peer of an older wire version cannot receive: those with an enum variant that its version does not
//! have. Faults are the exception: an older peer receives a general fault of its version with the same text.
use serde::{Serialize, Serializer, ser};

use super::{
    chat::ToolFormat,
    fault::{FaultClass, FaultKind},
    version::{WIRE_HIGHEST, speaking, spoken},
};

/// The enums of wire version 4 with their numbers of variants. A later version appends variants and never removes one.
pub const VARIANTS_4: &[(&str, u32)] = &[
    ("Across", 5),
    ("Algorithm", 6),
    ("Architecture", 4),
    ("Bench", 2),
    ("BenchFound", 2),
    ("BlockFormat", 16),
    ("Choice", 2),
    ("Exchange", 3),
    ("FaultKind", 61),
    ("FileState", 3),
    ("FinishReason", 4),
    ("Grammar", 2),
    ("Inspect", 2),
    ("Inspected", 2),
    ("KvFormat", 3),
    ("LogLevel", 5),
    ("Loss", 4),
    ("ModelsRequest", 7),
    ("ModelsResponse", 6),
    ("NodeState", 9),
    ("Phase", 4),
    ("Prompt", 3),
    ("Purpose", 3),
    ("RecoveryAnswer", 3),
    ("RecoveryAsk", 6),
    ("RequestBody", 18),
    ("RequestStage", 6),
    ("ResponseBody", 21),
    ("Role", 3),
    ("SealError", 3),
    ("Step", 4),
    ("Storage", 8),
    ("SyncKind", 2),
    ("ToolFormat", 3),
    ("VoteReply", 5),
    ("Welcome", 2),
];

/// The first variant within a message that a peer of this version does not support, as `Enum::Variant`.
pub fn unknown<T: Serialize + ?Sized>(version: u16, message: &T) -> Option<String> {
    if version >= WIRE_HIGHEST {
        return None;
    }
    speaking(version, || message.serialize(Walk)).err().map(|Unknown(name)| name)
}

/// Serializes a fault so that the peer of the current message can read it.
///
/// # Errors
/// The errors of the serializer.
pub fn tell<S: Serializer>(kind: &FaultKind, serializer: S) -> Result<S::Ok, S::Error> {
    if unknown(spoken(), kind).is_some() { general(kind).serialize(serializer) } else { kind.serialize(serializer) }
}

/// Serializes a format of tool calls so that the peer of the current message can read it: one that finds no calls is of use
/// to all.
///
/// # Errors
/// The errors of the serializer.
pub fn tell_format<S: Serializer>(format: &ToolFormat, serializer: S) -> Result<S::Ok, S::Error> {
    let told = if unknown(spoken(), format).is_some() { ToolFormat::None } else { *format };
    told.serialize(serializer)
}

/// The fault of version 4 with the same class: consoles and gateways treat it alike.
fn general(kind: &FaultKind) -> FaultKind {
    let reason = format!("{kind}; {}", kind.next());
    match kind.class() {
        FaultClass::Failed => FaultKind::Internal { reason },
        FaultClass::Refused => FaultKind::ParameterInvalid { reason },
        FaultClass::Lost => FaultKind::SessionLost { reason },
        FaultClass::Unreachable => FaultKind::Unreachable { address: "its address".into(), reason },
    }
}

/// The name of a variant that a peer does not support.
#[derive(Debug)]
struct Unknown(String);

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

impl ser::Error for Unknown {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// A serializer that writes nothing and stops at the first unknown variant.
#[derive(Clone, Copy)]
struct Walk;

fn check(name: &str, index: u32, variant: &str) -> Result<Walk, Unknown> {
    let known = VARIANTS_4.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count);
    if index < known { Ok(Walk) } else { Err(Unknown(format!("{name}::{variant}"))) }
}

macro_rules! skip {
    ($($method:ident: $kind:ty),*) => {
        $(fn $method(self, _: $kind) -> Result<(), Unknown> {
            Ok(())
        })*
    };
}

impl Serializer for Walk {
    type Ok = ();
    type Error = Unknown;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    skip!(serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64);
    skip!(serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_f32: f32);
    skip!(serialize_f64: f64, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8]);
    skip!(serialize_unit_struct: &'static str);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_none(self) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_unit(self) -> Result<(), Unknown> {
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unknown> {
        value.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Unknown> {
        value.serialize(self)
    }

    fn serialize_unit_variant(self, name: &'static str, index: u32, variant: &'static str) -> Result<(), Unknown> {
        check(name, index, variant).map(drop)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Unknown> {
        value.serialize(check(name, index, variant)?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Unknown> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Unknown> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Unknown> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Unknown> {
        check(name, index, variant)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Unknown> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Unknown> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Self, Unknown> {
        check(name, index, variant)
    }
}

macro_rules! walk_parts {
    ($($kind:ident: $method:ident),*) => {
        $(impl ser::$kind for Walk {
            type Ok = ();
            type Error = Unknown;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unknown> {
                value.serialize(*self)
            }

            fn end(self) -> Result<(), Unknown> {
                Ok(())
            }
        })*
    };
}

macro_rules! walk_fields {
    ($($kind:ident),*) => {
        $(impl ser::$kind for Walk {
            type Ok = ();
            type Error = Unknown;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), Unknown> {
                value.serialize(*self)
            }

            fn end(self) -> Result<(), Unknown> {
                Ok(())
            }
        })*
    };
}

walk_parts!(SerializeSeq: serialize_element, SerializeTuple: serialize_element);
walk_parts!(SerializeTupleStruct: serialize_field, SerializeTupleVariant: serialize_field);
walk_fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Walk {
    type Ok = ();
    type Error = Unknown;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unknown> {
        key.serialize(*self)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unknown> {
        value.serialize(*self)
    }

    fn end(self) -> Result<(), Unknown> {
        Ok(())
    }
}
