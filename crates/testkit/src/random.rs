//! Random inputs, reproducible by their seed.

/// The seed of random inputs; `PORTCULLIS_SEED` sets another.
pub fn seed() -> u64 {
    std::env::var("PORTCULLIS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// How many random inputs of a kind to compare; `PORTCULLIS_INPUTS` sets another number, for a long run.
pub fn inputs(usual: usize) -> usize {
    std::env::var("PORTCULLIS_INPUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// `SplitMix64`: the same inputs for the same seed.
#[derive(Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next_u64() % u64::try_from(end).unwrap()).unwrap()
    }

    /// True in one of `n` cases.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of a list.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// The list in random order.
    pub fn shuffled<T>(&mut self, mut list: Vec<T>) -> Vec<T> {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
        list
    }

    /// A random byte.
    pub fn byte(&mut self) -> u8 {
        self.next_u64().to_le_bytes()[0]
    }
}
