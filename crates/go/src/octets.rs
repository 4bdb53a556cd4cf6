//! Sets of octets, for tests of all octets of a text: one load for each of them, and no branch.

/// A set of octets; [`octets!`](crate::octets!) makes one.
#[derive(Debug)]
pub struct Octets([bool; 256]);

/// The set of the octets for which a constant expression holds, as a constant.
#[macro_export]
macro_rules! octets {
    (|$octet:ident| $holds:expr) => {{
        let mut set = [false; 256];
        let mut rest = set.as_mut_slice();
        let mut octet = 0_u8;
        while let Some((holds, others)) = rest.split_first_mut() {
            let $octet = octet;
            *holds = $holds;
            octet = octet.wrapping_add(1);
            rest = others;
        }
        $crate::octets::Octets::new(set)
    }};
}

pub use crate::octets;

impl Octets {
    /// The octets whose index in `set` is true.
    pub const fn new(set: [bool; 256]) -> Self {
        Self(set)
    }

    fn has(&self, octet: u8) -> bool {
        let Self(set) = self;
        set.get(usize::from(octet)).copied().unwrap_or_default()
    }

    /// Whether every octet of a text is in the set.
    pub fn has_all_of(&self, text: &[u8]) -> bool {
        let (eights, rest) = text.as_chunks::<8>();
        let all = |octets: &[u8]| octets.iter().fold(true, |all, octet| all & self.has(*octet));
        eights.iter().all(|eight| all(eight)) && all(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_octet_at_each_place_counts() {
        static SET: Octets = octets!(|octet| octet != b'x' && octet < 0xfe);
        for octet in 0..=u8::MAX {
            assert_eq!(SET.has_all_of(&[octet]), octet != b'x' && octet < 0xfe, "{octet}");
        }
        for length in 0..20 {
            let text = vec![b'a'; length];
            assert!(SET.has_all_of(&text));
            for at in 0..length {
                let mut text = text.clone();
                text[at] = b'x';
                assert!(!SET.has_all_of(&text), "{at} of {length}");
            }
        }
    }
}
