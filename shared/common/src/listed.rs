//! Enums whose variants can be listed: one table instead of an enum and a list that must name the same variants.

/// Defines an enum without fields, and the constant `ALL` with its variants in their order.
#[macro_export]
macro_rules! listed {
    ($(#[$doc:meta])* $visibility:vis enum $name:ident { $($(#[$note:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        $visibility enum $name {
            $($(#[$note])* $variant,)*
        }

        impl $name {
            /// All variants, in their order.
            $visibility const ALL: [Self; [$(stringify!($variant)),*].len()] = [$(Self::$variant),*];
        }
    };
}

#[cfg(test)]
mod tests {
    listed! {
        /// An enum.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Three {
            /// The first one.
            One,
            Two,
            Last,
        }
    }

    #[test]
    fn list_has_each_variant_in_order() {
        assert_eq!(Three::ALL, [Three::One, Three::Two, Three::Last]);
        assert_eq!(Three::ALL.map(|variant| variant as usize), [0, 1, 2]);
    }
}
