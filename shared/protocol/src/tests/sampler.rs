//! Generates values of any message type through serde: every enum reports its number of variants, every number is the
//! next one.
use std::collections::{BTreeMap, BTreeSet};

use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor,
    value::{Error, U32Deserializer},
};

/// An enum of the message types: its variants, and the ones generated so far.
#[derive(Debug, Default)]
pub(super) struct Met {
    pub(super) variants: Vec<String>,
    pub(super) made: BTreeSet<u32>,
}

/// The enums of the messages by name.
pub(super) type Enums = BTreeMap<String, Met>;

/// Generates one value.
pub(super) struct Sampler<'a> {
    /// Number of variants to use of each enum; an enum that is missing here uses all.
    pub(super) known: &'a dyn Fn(&str) -> Option<u32>,
    /// Number of the value to generate.
    pub(super) number: u32,
    /// Number of variants of the outermost enum, `None` until it is reached. Its variant is `number`.
    pub(super) outermost: Option<u32>,
    /// Counts the generated values.
    pub(super) count: u64,
    pub(super) enums: &'a mut Enums,
}

impl Sampler<'_> {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn choose(&mut self, name: &str, variants: &[&str]) -> u32 {
        let count = (self.known)(name).unwrap_or(variants.len() as u32);
        let seed = if self.outermost.is_none() { u64::from(self.number) } else { self.next() + u64::from(self.number) };
        self.outermost.get_or_insert(count);
        let chosen = (seed % u64::from(count)) as u32;
        let met = self.enums.entry(name.into()).or_default();
        let names: Vec<String> = variants.iter().map(|variant| (*variant).to_owned()).collect();
        assert!(met.variants.is_empty() || met.variants == names, "two enums are called {name}");
        met.variants = names;
        met.made.insert(chosen);
        chosen
    }
}

macro_rules! numbers {
    ($($method:ident $visit:ident |$count:ident| $value:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let $count = self.next();
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Sampler<'_> {
    type Error = Error;

    numbers! {
        deserialize_bool visit_bool |count| count % 2 == 1;
        deserialize_i8 visit_i8 |count| -((count % 100) as i8);
        deserialize_i16 visit_i16 |count| -(count as i16) - 200;
        deserialize_i32 visit_i32 |count| -(count as i32) - 70_000;
        deserialize_i64 visit_i64 |count| -(count as i64) - 5_000_000_000;
        deserialize_u8 visit_u8 |count| (count % 250) as u8;
        deserialize_u16 visit_u16 |count| count as u16 + 200;
        deserialize_u32 visit_u32 |count| count as u32 + 70_000;
        deserialize_u64 visit_u64 |count| count + 5_000_000_000;
        deserialize_f32 visit_f32 |count| count as f32 + 0.5;
        deserialize_f64 visit_f64 |count| count as f64 + 0.25;
        deserialize_char visit_char |count| char::from(b'a' + (count % 26) as u8);
        deserialize_str visit_string |count| format!("text {count}");
        deserialize_string visit_string |count| format!("text {count}");
        deserialize_bytes visit_byte_buf |count| vec![count as u8; 3];
        deserialize_byte_buf visit_byte_buf |count| vec![count as u8; 3];
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("the messages are not self-describing"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.next() % 5 == 4 { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts(self, 2))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts(self, length))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts(self, length))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Parts(self, 1))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts(self, fields.len()))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let chosen = self.choose(name, variants);
        visitor.visit_enum(Variant(self, chosen))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("fields are identified by position"))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(de::Error::custom("no value is skipped"))
    }
}

/// This many elements of a list, a tuple, a struct or a map.
struct Parts<'a, 'b>(&'a mut Sampler<'b>, usize);

impl<'de> de::SeqAccess<'de> for Parts<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.1 == 0 {
            return Ok(None);
        }
        self.1 -= 1;
        seed.deserialize(&mut *self.0).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.1)
    }
}

impl<'de> de::MapAccess<'de> for Parts<'_, '_> {
    type Error = Error;

    fn next_key_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(&mut *self.0)
    }
}

/// The chosen variant of an enum.
struct Variant<'a, 'b>(&'a mut Sampler<'b>, u32);

impl<'de> de::EnumAccess<'de> for Variant<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Error> {
        let index: U32Deserializer<Error> = self.1.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts(self.0, length))
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts(self.0, fields.len()))
    }
}
