//! Hard constraints hold whatever a client asks for and whatever fails: nothing is ever sent outside the legal
//! set, and headers only make that set smaller. Deadlines prefer and do not forbid, so they are no part of it (where they
//! are configured to, requests are refused: `deadlines`).

use std::sync::Arc;

use crate::support::answers::{chat, embedding_body, json};
use crate::support::app::{CHAT, CHEAPEST_FIRST, EMBEDDINGS, Router, llm, node};
use cema_router::domain::{
    Availability, Capabilities, Constraints, Destination, DestinationId, DestinationOrd, DestinationState,
    EndpointOrd, Network, NodeClass, ObjectiveScales, Power, Prediction, Price, QualitySource,
    RoutingContext, Throughput, TransferEnergy, Weights,
};
use cema_router::planning::{PlanJob, PlanParams, Ticket, Waiting};
use cema_router::request_manager::admission::{Ask, ModelDirectory, VirtualModel};
use cema_router::routing::{
    CompletionModel, CostModels, EnergyModel, ObjectiveMode, PolicyKind, PolicyParams, TimeTerm, for_kind,
    legal_set,
};
use cema_router::units::{Bytes, BytesPerSec, Joules, Quality, Seconds, Tokens, TokensPerSec, Usd, Watts};
use proptest::prelude::*;

const M: usize = 5;
const NEEDS: [Capabilities; 3] =
    [Capabilities::CHAT, Capabilities::EMBEDDING, Capabilities::CHAT.with(Capabilities::TOOLS)];

fn destination(n: usize, class: NodeClass, model: &str, capabilities: Capabilities) -> Destination {
    Destination {
        id: DestinationId::new(&format!("n{n}"), None, model),
        node: format!("n{n}").into(),
        class,
        endpoint: EndpointOrd(u32::try_from(n).unwrap()),
        model: model.into(),
        upstream_model: model.into(),
        // The last one's is not known.
        context: (n + 1 < M).then_some(Tokens(1000.0 * (n + 1) as f64)),
        capabilities,
        price: Price { prompt_usd_per_mtok: 1.0 + n as f64, ..Price::default() },
        throughput: Throughput {
            prefill: TokensPerSec(1000.0),
            decode: TokensPerSec(10.0 + n as f64),
            batch_speedup: 2.0,
            max_concurrency: 2,
            cached_prompt: Tokens::ZERO,
        },
        network: Network {
            rtt: Seconds(0.01),
            uplink: BytesPerSec(1e6),
            downlink: BytesPerSec(1e6),
            transfer_energy: TransferEnergy::PerMegabyte(Joules(0.1)),
            usd_per_gb: 0.0,
        },
        power: Power { board: Watts(100.0), idle: Watts(20.0), utilisation: 0.8 },
        quality_prior: Quality(0.5),
        max_inflight: 4,
    }
}

prop_compose! {
    fn any_context()(
        parts in prop::collection::vec(
            (any::<bool>(), 0..2_usize, 0..3_usize, 0..9_usize, 0..4_u32), M
        ),
    ) -> RoutingContext {
        let (mut destinations, mut states) = (Vec::new(), Vec::new());
        for (n, (is_edge, model, needs, availability, inflight)) in parts.into_iter().enumerate() {
            let class = if is_edge { NodeClass::Edge } else { NodeClass::Cloud };
            destinations.push(destination(n, class, ["m0", "m1"][model], NEEDS[needs]));
            // A third of them are ready, and some busy.
            let availability = Availability::ALL.get(availability).copied().unwrap_or(Availability::Ready);
            states.push(DestinationState {
                availability,
                backlog: Seconds(f64::from(inflight)),
                inflight,
                ..DestinationState::idle()
            });
        }
        RoutingContext {
            destinations: destinations.into(),
            states,
            weights: Weights::EQUAL,
            scales: ObjectiveScales { quality: 0.5, cost: Usd(0.001), energy: Joules(100.0), time: Seconds(4.0) },
            finish_target: None,
        }
    }
}

prop_compose! {
    fn any_constraints()(
        placement in prop::option::of(prop::sample::select(NodeClass::ALL)),
        min_quality in prop::option::of(0.0..1.0),
        deadline in prop::option::of(0.1..60.0),
    ) -> Constraints {
        Constraints { placement, min_quality: min_quality.map(Quality), deadline: deadline.map(Seconds) }
    }
}

/// What one client asks for, and what has happened to it so far.
#[derive(Debug, Clone)]
struct Client {
    model: &'static str,
    needs: Capabilities,
    prompt: f64,
    headers: Constraints,
    weights: Option<Weights>,
    quality: Vec<f64>,
    excluded: Vec<DestinationOrd>,
    takes_any_slot: bool,
}

prop_compose! {
    fn any_client()(
        model in prop::sample::select(vec!["auto", "strict", "m0", "m1"]),
        needs in prop::sample::select(&NEEDS[..]),
        prompt in 1.0..3000.0,
        headers in any_constraints(),
        weights in prop::option::of((0.0..1.0, 0.01..1.0)),
        quality in prop::collection::vec(0.0..1.0, M),
        excluded in prop::collection::vec(0..M as u32, 0..4),
        takes_any_slot in any::<bool>(),
    ) -> Client {
        let weights = weights.map(|(quality, time)| Weights { quality, cost: 0.0, energy: 0.0, time });
        let excluded = excluded.into_iter().map(DestinationOrd).collect();
        Client { model, needs, prompt, headers, weights, quality, excluded, takes_any_slot }
    }
}

impl Client {
    fn ask(&self, headers: Constraints) -> Ask<'_> {
        Ask {
            model: self.model,
            needs: self.needs,
            prompt_tokens: Tokens(self.prompt),
            longest_prompt: Tokens(self.prompt),
            max_completion_tokens: Some(Tokens(100.0)),
            choices: 1,
            upload: Bytes(1000.0),
            constraints: headers,
            weights: self.weights,
        }
    }

    fn prediction(&self) -> Prediction {
        Prediction {
            quality: self.quality.iter().copied().map(Quality).collect(),
            completion_tokens: vec![Tokens(50.0); M],
            cluster_error: Vec::new(),
            source: QualitySource::Store,
        }
    }

    /// Whether it may be sent to `d`, from what it and the operator wrote alone.
    fn may_use(&self, d: usize, context: &RoutingContext, strict: &Constraints) -> bool {
        let (destination, state) = (&context.destinations[d], &context.states[d]);
        let own = if self.model == "strict" { *strict } else { Constraints::default() };
        let is_virtual = matches!(self.model, "auto" | "strict");
        let placements = [own.placement, self.headers.placement];
        let floors = [own.min_quality, self.headers.min_quality];
        (is_virtual || &*destination.model == self.model)
            && destination.capabilities.offers(self.needs)
            && destination.context.is_none_or(|context| context.get() >= self.prompt + 100.0)
            && placements.into_iter().flatten().all(|class| class == destination.class)
            && floors.into_iter().flatten().all(|floor| self.quality[d] >= floor.get())
            && matches!(state.availability, Availability::Ready | Availability::Busy)
            && !self.excluded.iter().any(|tried| tried.idx() == d)
    }
}

fn plan_params() -> PlanParams {
    PlanParams {
        costs: CostModels {
            completion: CompletionModel::Fifo,
            time: TimeTerm::Makespan,
            energy: EnergyModel::Marginal,
        },
        objective: ObjectiveMode::Stationary,
        seed: 7,
    }
}

proptest! {
    #[test]
    fn nothing_is_planned_outside_of_what_was_allowed(
        context in any_context(),
        strict in any_constraints(),
        clients in prop::collection::vec(any_client(), 1..6),
    ) {
        let models = ["auto", "strict"].map(|name| VirtualModel {
            name: name.into(),
            constraints: if name == "strict" { strict } else { Constraints::default() },
            time: None,
            weights: None,
        });
        let directory = ModelDirectory::new(&context.destinations, models.to_vec());
        let mut waiting = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            let legal = |headers: Constraints| {
                let request = directory.admit("r".into(), &client.ask(headers)).ok()?;
                let set = legal_set(&request, Some(&client.prediction()), &context, &client.excluded);
                Some((request, set.map_or(Vec::new(), |set| set.iter().map(|d| d.idx()).collect())))
            };
            // Refused for a contradiction or an unknown name: it is sent nowhere.
            let Some((request, with_headers)) = legal(client.headers) else { continue };
            let allowed: Vec<usize> = (0..M).filter(|d| client.may_use(*d, &context, &strict)).collect();
            prop_assert_eq!(&with_headers, &allowed);
            let (_, without) = legal(Constraints::default()).unwrap();
            prop_assert!(with_headers.iter().all(|d| without.contains(d)), "{:?} {:?}", with_headers, without);
            waiting.push(Waiting {
                ticket: Ticket(n as u64),
                request: Arc::new(request),
                prediction: Arc::new(client.prediction()),
                excluded: client.excluded.clone(),
                waited: Seconds(1.0),
                takes_any_slot: client.takes_any_slot,
                takes_any_room: client.takes_any_slot,
            });
        }
        let mut params = PolicyParams::default();
        params.memetic.evaluations_max = Some(200);
        for kind in PolicyKind::ALL.iter().filter(|kind| **kind != PolicyKind::Uniroute) {
            let job = PlanJob {
                number: 1,
                taken_at: Seconds(1.0),
                first_request_number: 0,
                waiting: waiting.clone(),
                context: context.clone(),
                time: None,
                completion: CompletionModel::Slots,
            };
            match job.solve(&*for_kind(*kind, &params), &plan_params(), &mut || false) {
                Ok(plan) => {
                    prop_assert_eq!(plan.planned.len() + plan.impossible.len(), waiting.len());
                    for planned in &plan.planned {
                        let client = &clients[usize::try_from(planned.ticket.0).unwrap()];
                        prop_assert!(client.may_use(planned.destination.idx(), &context, &strict), "{kind}");
                    }
                    for (ticket, _) in &plan.impossible {
                        let client = &clients[usize::try_from(ticket.0).unwrap()];
                        prop_assert!((0..M).all(|d| !client.may_use(d, &context, &strict)), "{kind}");
                    }
                }
                Err(error) => prop_assert!(
                    matches!(kind, PolicyKind::CloudOnly | PolicyKind::EdgeOnly), "{kind}: {error}"
                ),
            }
        }
    }
}

/// Name, class, capabilities, quality prior and whether it works, of each node; each is dearer than the last.
const FLEET: [(&str, &str, &str, f64, bool); 5] = [
    ("a", "edge", "chat", 0.3, false),
    ("b", "cloud", "chat, tools", 0.8, false),
    ("c", "edge", "chat, embedding", 0.6, true),
    ("d", "cloud", "chat, tools", 0.9, true),
    ("e", "cloud", "embedding", 0.9, false),
];

#[tokio::test]
async fn nothing_is_sent_outside_of_what_was_allowed_whatever_fails() {
    let mut endpoints = Vec::new();
    let mut nodes = Vec::new();
    for (n, (name, class, capabilities, prior, works)) in FLEET.into_iter().enumerate() {
        let endpoint = llm(move |request| match (works, request.head.path().as_str()) {
            (false, _) => json(500, r#"{"error":{"message":"broken","type":"t","param":null,"code":null}}"#),
            (true, EMBEDDINGS) => json(200, &embedding_body("m")),
            (true, _) => chat("m", "hello"),
        })
        .await;
        let model = format!(
            "{{name: m-{name}, quality_prior: {prior}, capabilities: [{capabilities}], price: {{request_usd: {n}}}}}"
        );
        let node = node(name, endpoint.url()).model(&model);
        nodes.push(if class == "cloud" { node.cloud() } else { node });
        endpoints.push(endpoint);
    }
    let virtual_models = "virtual_models:\n  - {name: auto}\n  - {name: local, placement: edge}\n  - {name: safe, min_quality: 0.5}\n";
    let router = Router::start(&nodes, &format!("{virtual_models}{CHEAPEST_FIRST}")).await;
    let bodies = [
        (CHAT, "chat", r#""messages":[{"role":"user","content":"x"}]"#),
        (CHAT, "tools", r#""messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]"#),
        (EMBEDDINGS, "embedding", r#""input":"x""#),
    ];
    let mut n_served = 0;
    for (path, need, body) in bodies {
        for model in ["auto", "local", "safe", "m-b", "m-c"] {
            for placement in [None, Some("edge"), Some("cloud")] {
                for floor in [None, Some(0.2), Some(0.7)] {
                    for further in ["", "x-cema-weights: quality=1\r\n", "x-cema-deadline-ms: 1\r\n"] {
                        let id = format!("{need}/{model}/{placement:?}/{floor:?}/{}", further.trim());
                        let id = id.replace(' ', "");
                        let mut headers = format!("x-request-id: {id}\r\n{further}");
                        headers.extend(placement.map(|class| format!("x-cema-placement: {class}\r\n")));
                        headers.extend(floor.map(|floor| format!("x-cema-min-quality: {floor}\r\n")));
                        let answer =
                            router.post(path, &headers, format!(r#"{{"model":"{model}",{body}}}"#)).await;
                        let may_use = |n: usize| {
                            let (name, class, capabilities, prior, _) = FLEET[n];
                            (model.strip_prefix("m-").is_none_or(|own| own == name))
                                && capabilities.split(", ").any(|offered| offered == need)
                                && (model != "local" || class == "edge")
                                && placement.is_none_or(|wanted| class == wanted)
                                && (model != "safe" || prior >= 0.5)
                                && floor.is_none_or(|floor| prior >= floor)
                        };
                        for (n, endpoint) in endpoints.iter().enumerate() {
                            let was_sent = endpoint
                                .posts()
                                .iter()
                                .any(|sent| sent.head.all("x-request-id") == [id.as_str()]);
                            assert!(!was_sent || may_use(n), "{id} went to {}", FLEET[n].0);
                        }
                        let can_be_served = (0..FLEET.len()).any(|n| may_use(n) && FLEET[n].4);
                        assert_eq!(answer.head.status() == 200, can_be_served, "{id}: {}", answer.text());
                        n_served += usize::from(can_be_served);
                    }
                }
            }
        }
    }
    // 3 × 5 × 3 × 3 × 3 requests, of which this many have a working destination.
    assert!(n_served > 100 && n_served < 405, "{n_served}");
}
