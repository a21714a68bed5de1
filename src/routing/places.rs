//! Concurrency caps: at most so many requests of a batch at a destination.
//!
//! A complete legal assignment within the caps is kept at hand while requests are placed one after the
//! other. A destination is open to a request if the others that are not placed yet can still be matched
//! with what is left, along an alternating path; so no order of placing ends in a dead end.

/// The caps of a problem and a complete legal assignment within them.
#[derive(Debug, Clone)]
pub(crate) struct Caps {
    /// R × M, row-major.
    legal: Vec<bool>,
    /// The most requests of the batch at each destination, M entries.
    most: Vec<usize>,
    matching: Matching,
}

/// Requests that have fewer places than there are requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The first request that found no place.
    pub(crate) request: usize,
    /// How many requests may go nowhere but to `destinations`.
    pub(crate) requests: usize,
    /// Columns, rising; their caps sum to `requests − 1`.
    pub(crate) destinations: Vec<usize>,
}

impl Caps {
    /// The caps `most` (M entries, not empty) over a legality table of R × M.
    ///
    /// # Errors
    /// Some requests have too few places.
    pub(crate) fn new(legal: Vec<bool>, most: Vec<usize>) -> Result<Self, Shortage> {
        let mut caps = Self { matching: Matching::new(most.len()), legal, most };
        let mut matching = std::mem::take(&mut caps.matching);
        for r in 0..caps.legal.len() / caps.most.len() {
            let legal = || (0..caps.most.len()).filter(|d| caps.is_legal(r, *d));
            let free = legal().find(|d| matching.count[*d] < caps.most[*d]);
            if free.is_none() {
                matching.search(&caps, None);
            }
            let open = free.or_else(|| legal().find(|d| matching.onward[*d] != Onward::Closed));
            let Some(d) = open else { return Err(caps.shortage(r, &matching)) };
            if free.is_some() {
                matching.onward[d] = Onward::Free;
            }
            matching.at.push(d);
            matching.put(r, d, true);
        }
        caps.matching = matching;
        Ok(caps)
    }

    /// The same caps with the columns in another order.
    pub(crate) fn permuted(&self, columns: &[usize]) -> Self {
        let mut place_of = vec![0; columns.len()];
        for (place, column) in columns.iter().enumerate() {
            place_of[*column] = place;
        }
        let rows = self.legal.chunks_exact(columns.len());
        let mut matching = Matching::new(columns.len());
        for (r, d) in self.matching.at.iter().enumerate() {
            matching.at.push(place_of[*d]);
            matching.add(r, place_of[*d], true);
        }
        Self {
            legal: rows.flat_map(|row| columns.iter().map(|d| row[*d])).collect(),
            most: columns.iter().map(|d| self.most[*d]).collect(),
            matching,
        }
    }

    /// The most requests of the batch at `d`.
    pub(crate) fn most(&self, d: usize) -> usize {
        self.most[d]
    }

    /// Whether an assignment, as columns, is within the caps.
    pub(crate) fn admit(&self, assignment: impl Iterator<Item = usize>) -> bool {
        let mut left = self.most.clone();
        let take = |d: usize| left[d].checked_sub(1).map(|less| left[d] = less).is_some();
        assignment.into_iter().all(take)
    }

    fn is_legal(&self, r: usize, d: usize) -> bool {
        self.legal[r * self.most.len() + d]
    }

    /// Everything an alternating path from `request` reaches: full, and nobody there may go elsewhere.
    fn shortage(&self, request: usize, matching: &Matching) -> Shortage {
        let m = self.most.len();
        let (mut reached, mut pending, mut requests) = (vec![false; m], vec![request], 0);
        while let Some(r) = pending.pop() {
            requests += 1;
            for d in (0..m).filter(|d| self.is_legal(r, *d)) {
                if !std::mem::replace(&mut reached[d], true) {
                    pending.extend(&matching.movable[d]);
                }
            }
        }
        Shortage { request, requests, destinations: (0..m).filter(|d| reached[*d]).collect() }
    }
}

/// How a destination can take one request more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Onward {
    /// Not at all.
    Closed,
    /// It has a place.
    Free,
    /// If this request moves on to that destination, which is not closed.
    Through(usize, usize),
}

/// Requests at their places, some of them for good.
#[derive(Debug, Clone, Default)]
struct Matching {
    /// Where each request is.
    at: Vec<usize>,
    /// Requests at each destination.
    count: Vec<usize>,
    /// Those of them that may still move.
    movable: Vec<Vec<usize>>,
    /// Of the last search.
    onward: Vec<Onward>,
}

impl Matching {
    fn new(m: usize) -> Self {
        let (count, movable, onward) = (vec![0; m], vec![Vec::new(); m], vec![Onward::Closed; m]);
        Self { at: Vec::new(), count, movable, onward }
    }

    /// Finds for every destination how it can take one more, if a request leaves `vacated`.
    fn search(&mut self, caps: &Caps, vacated: Option<usize>) {
        let mut open: Vec<usize> = Vec::with_capacity(self.count.len());
        for d in 0..self.count.len() {
            let is_free = self.count[d] < caps.most[d] || vacated == Some(d);
            self.onward[d] = if is_free { Onward::Free } else { Onward::Closed };
            open.extend(is_free.then_some(d));
        }
        let mut known = 0;
        // Each pass looks for ways into what the passes before have opened.
        while known < open.len() {
            known = open.len();
            for d in 0..self.count.len() {
                if self.onward[d] != Onward::Closed {
                    continue;
                }
                let way = |q: usize| open.iter().find(|to| caps.is_legal(q, **to)).map(|to| (q, *to));
                if let Some((q, to)) = self.movable[d].iter().find_map(|q| way(*q)) {
                    self.onward[d] = Onward::Through(q, to);
                    open.push(d);
                }
            }
        }
    }

    /// Puts `r`, which is nowhere, at `d`, along the path the last search found.
    fn put(&mut self, r: usize, d: usize, is_movable: bool) {
        let (mut who, mut to) = (r, d);
        while let Onward::Through(next, onward) = self.onward[to] {
            self.remove(next, to);
            self.add(who, to, is_movable || who != r);
            (who, to) = (next, onward);
        }
        self.add(who, to, is_movable || who != r);
    }

    fn add(&mut self, r: usize, d: usize, is_movable: bool) {
        self.at[r] = d;
        self.count[d] += 1;
        if is_movable {
            self.movable[d].push(r);
        }
    }

    fn remove(&mut self, r: usize, d: usize) {
        self.count[d] -= 1;
        self.movable[d].retain(|movable| *movable != r);
    }
}

/// Places for a batch that is assigned request by request; without caps every place is open.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    caps: Option<(&'a Caps, Matching)>,
}

impl<'a> Places<'a> {
    /// Nobody placed yet.
    pub(crate) fn new(caps: Option<&'a Caps>) -> Self {
        Self { caps: caps.map(|caps| (caps, caps.matching.clone())) }
    }

    /// Looks which destinations are open to `r`, which is not placed yet.
    pub(crate) fn look(&mut self, r: usize) {
        if let Some((caps, matching)) = &mut self.caps {
            let vacated = matching.at[r];
            matching.search(caps, Some(vacated));
        }
    }

    /// Whether the request last looked for may go to `d`, as far as caps are concerned. At least one legal
    /// destination is open.
    pub(crate) fn is_open(&self, d: usize) -> bool {
        self.caps.as_ref().is_none_or(|(_, matching)| matching.onward[d] != Onward::Closed)
    }

    /// Places `r` at `d` for good if that is open, and says whether it is. Most of the time this takes no
    /// search; after `false` the destinations open to `r` are known.
    pub(crate) fn take_if_open(&mut self, r: usize, d: usize) -> bool {
        let Some((caps, matching)) = &mut self.caps else { return true };
        let vacated = matching.at[r];
        let is_free = |to: usize| to == vacated || matching.count[to] < caps.most[to];
        let next = |q: usize| (0..caps.most.len()).find(|to| is_free(*to) && caps.is_legal(q, *to));
        if is_free(d) {
            matching.onward[d] = Onward::Free;
        } else if let Some((q, to)) = matching.movable[d].iter().find_map(|q| next(*q).map(|to| (*q, to))) {
            (matching.onward[d], matching.onward[to]) = (Onward::Through(q, to), Onward::Free);
        } else {
            matching.search(caps, Some(vacated));
            if matching.onward[d] == Onward::Closed {
                return false;
            }
        }
        self.take(r, d);
        true
    }

    /// Places `r`, the request last looked for, at `d`, which is open, for good.
    pub(crate) fn take(&mut self, r: usize, d: usize) {
        if let Some((_, matching)) = &mut self.caps {
            matching.remove(r, matching.at[r]);
            matching.put(r, d, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matching_is_found_where_the_first_choice_is_in_the_way() {
        // Request 0 may go to either, request 1 only to column 0.
        let caps = Caps::new(vec![true, true, true, false], vec![1, 1]).unwrap();
        assert_eq!(caps.matching.at, [1, 0]);
        let mut places = Places::new(Some(&caps));
        places.look(0);
        assert!(!places.is_open(0) && places.is_open(1), "request 1 needs column 0");
        places.take(0, 1);
        places.look(1);
        assert!(places.is_open(0) && !places.is_open(1));
    }

    #[test]
    fn placing_moves_others_along_a_path() {
        // 0: a b; 1: b c; 2: c a. The one free place is wherever the last path ends.
        let legal = vec![true, true, false, false, true, true, true, false, true];
        let caps = Caps::new(legal, vec![1; 3]).unwrap();
        let mut places = Places::new(Some(&caps));
        for (r, d) in [(0, 1), (1, 2), (2, 0)] {
            places.look(r);
            assert!(places.is_open(d));
            places.take(r, d);
        }
    }

    #[test]
    fn a_shortage_names_those_who_compete() {
        // Requests 1 and 2 only at column 0, request 0 only at column 1.
        let legal = vec![false, true, true, false, true, false];
        let shortage = Caps::new(legal, vec![1, 5]).unwrap_err();
        assert_eq!(shortage, Shortage { request: 2, requests: 2, destinations: vec![0] });
    }
}
