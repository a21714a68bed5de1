//! A small population of distinct local optima.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Assignments whose values differ by less than this share are taken for the same.
const SAME: f64 = 1e-10;

/// An assignment and its value.
#[derive(Debug, Clone)]
struct Member {
    value: f64,
    assignment: Vec<u32>,
}

/// At most `capacity` members, best first, no two of equal value.
#[derive(Debug)]
pub(super) struct Population {
    members: Vec<Member>,
    capacity: usize,
}

impl Population {
    pub(super) fn new(capacity: usize) -> Self {
        Self { members: Vec::with_capacity(capacity + 1), capacity: capacity.max(2) }
    }

    /// Takes `assignment` in if it is new and there is room or it is better than the worst.
    pub(super) fn offer(&mut self, assignment: &[u32], value: f64) -> bool {
        let at = self.members.partition_point(|member| member.value < value);
        let near = self.members[at.saturating_sub(1)..].iter().take(2);
        let known = near.into_iter().any(|m| (m.value - value).abs() <= SAME * value.abs());
        if known || at >= self.capacity {
            return false;
        }
        if self.members.len() >= self.capacity {
            self.members.truncate(self.capacity - 1);
        }
        self.members.insert(at, Member { value, assignment: assignment.to_vec() });
        true
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Assignment `i`, best first.
    pub(super) fn get(&self, i: usize) -> &[u32] {
        &self.members[i].assignment
    }

    /// The members with their values, best first.
    pub(super) fn into_members(self) -> impl Iterator<Item = (f64, Vec<u32>)> {
        self.members.into_iter().map(|member| (member.value, member.assignment))
    }

    /// Uniform crossover of two different members, written to `child`; of the only member a copy. Answers
    /// with the first parent.
    pub(super) fn cross(&self, rng: &mut ChaCha8Rng, child: &mut [u32]) -> usize {
        let n = self.members.len();
        let first = rng.random_range(0..n);
        let second = if n > 1 { (first + rng.random_range(1..n)) % n } else { first };
        let (a, b) = (self.get(first), self.get(second));
        let mut bits = 0_u64;
        for (r, gene) in child.iter_mut().enumerate() {
            if r % 64 == 0 {
                bits = rng.random();
            }
            *gene = if bits >> (r % 64) & 1 == 0 { a[r] } else { b[r] };
        }
        first
    }
}
