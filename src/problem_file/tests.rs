//! Reading and writing problem files: faults with their places, exact round trips.

use serde_json::{Value, json};

use crate::domain::{DestinationOrd, NodeClass, Weights};
use crate::problem_file::{ProblemFile, from_reader, to_json};
use crate::routing::problem::CELLS_MAX;
use crate::routing::{Evaluator, Objective, Problem, TermRange};

fn example() -> Value {
    json!({
        "schema": "cema-problem/1",
        "name": "example",
        "objective": {
            "weights": {"quality": 0.25, "cost": 0.25, "energy": 0.25, "time": 0.25},
            "bounds": {"quality": [0.1, 0.6], "cost": [1.0, 3.0], "energy": [10.0, 30.0], "time": [1.0, 4.0]},
        },
        "destinations": [
            {"id": "a/m", "class": "cloud", "backlog_s": 0.5, "batch_speedup": 2.0, "network_s": 0.04},
            {"id": "b/org/m", "backlog_s": 0.0, "batch_speedup": 1.0, "network_s": 0.01},
        ],
        "quality_loss": [[0.1, 0.3], [0.2, 0.4], [0.1, 0.5]],
        "cost_usd": [[1.0, 0.5], [1.0, 0.5], [1.0, 0.5]],
        "energy_j": [[10.0, 5.0], [10.0, 5.0], [10.0, 5.0]],
        "service_s": [[1.0, 2.0], [1.5, 2.5], [0.5, 1.0]],
        "reference": {"method": "anything", "objective_optimum": 0.1},
    })
}

fn read(value: &Value) -> Result<ProblemFile, String> {
    from_reader(value.to_string().as_bytes()).map_err(|error| error.to_string())
}

/// The message for the example with one value replaced.
fn refusal(pointer: &str, value: Value) -> String {
    let mut file = example();
    *file.pointer_mut(pointer).unwrap() = value;
    read(&file).unwrap_err()
}

#[test]
fn reads_what_the_format_says() {
    let file = read(&example()).unwrap();
    assert_eq!((file.problem.n_requests(), file.problem.n_destinations()), (3, 2));
    assert_eq!(file.problem.destination(DestinationOrd(0)).class, Some(NodeClass::Cloud));
    assert_eq!(file.problem.destination(DestinationOrd(1)).class, None);
    assert_eq!(file.problem.destination(DestinationOrd(1)).id.as_str(), "b/org/m");
    assert_eq!(file.objective.bounds().time, TermRange { min: 1.0, max: 4.0 });
    assert!((file.problem.service(1, DestinationOrd(1)).get() - 2.5).abs() < 1e-12);
    assert!(file.problem.is_legal(2, DestinationOrd(1)));
}

#[test]
fn a_problem_written_and_read_again_has_the_same_objective_to_the_last_bit() {
    let mut tables = read(&example()).unwrap().problem.tables().clone();
    tables.weights[1] = Weights { quality: 0.7, cost: 0.1, energy: 0.1, time: 0.1 };
    tables.legal[0] = false;
    tables.first_request_number = 17;
    tables.length_tokens = vec![3.0, 1.0, 2.0];
    tables.destinations[0].cap = Some(2);
    tables.service_s[0] = 1.0 / 3.0;
    let problem = Problem::new(tables).unwrap();
    let bounds = *read(&example()).unwrap().objective.bounds();
    let objective = Objective::with_bounds_and_backlog_term(&problem, bounds);
    let text = to_json("live", &problem, &objective).unwrap();
    let again = from_reader(text.as_bytes()).unwrap();
    let x = [DestinationOrd(1), DestinationOrd(0), DestinationOrd(0)];
    let value = Evaluator::new(&problem, &objective).objective(&x);
    let value_again = Evaluator::new(&again.problem, &again.objective).objective(&x);
    assert_eq!(value.to_bits(), value_again.to_bits());
    assert_eq!(again.problem.tables().first_request_number, 17);
    assert_eq!(again.problem.tables().length_tokens, [3.0, 1.0, 2.0]);
    assert!(!again.problem.is_legal(0, DestinationOrd(0)));
    let caps = again.problem.destinations().iter().map(|load| load.cap);
    assert_eq!(caps.collect::<Vec<_>>(), [Some(2), None]);
}

#[test]
fn bad_shapes_name_the_table_and_the_row() {
    let ragged = refusal("/cost_usd", json!([[1.0, 0.5], [1.0], [1.0, 0.5]]));
    assert_eq!(ragged, "cost_usd is ragged or of the wrong shape: row 1 has 1 entries, row 0 has 2");
    let short = refusal("/energy_j", json!([[10.0, 5.0]]));
    assert!(short.starts_with("energy_j") && short.contains("1 rows where service_s has 3"), "{short}");
    let narrow = refusal("/quality_loss", json!([[0.1], [0.2], [0.3]]));
    assert!(narrow.starts_with("quality_loss") && narrow.contains("1 columns for 2"), "{narrow}");
    let mut file = example();
    file["legal"] = json!([[true, true], [false, false], [true, true]]);
    assert_eq!(read(&file).unwrap_err(), "request 1 has no legal destination");
}

#[test]
fn bad_values_name_the_cell() {
    let negative = refusal("/service_s/2/1", json!(-1.0));
    assert_eq!(negative, "service_s of request 2 at b/org/m is -1; it must be finite and not negative");
    let speedup = refusal("/destinations/0/batch_speedup", json!(0.0));
    assert!(speedup.contains("batch_speedup of destination a/m"), "{speedup}");
    let weights = refusal("/objective/weights", json!({"quality": 0, "cost": 0, "energy": 0, "time": 0}));
    assert!(weights.contains("weights of request 0"), "{weights}");
    let bounds = refusal("/objective/bounds/energy", json!([30.0, 10.0]));
    assert!(bounds.starts_with("objective.bounds.energy is [30, 10]"), "{bounds}");
    let same_id = refusal("/destinations/1/id", json!("a/m"));
    assert!(same_id.contains("a/m occurs twice"), "{same_id}");
    let class = refusal("/destinations/0/class", json!("moon"));
    assert!(class.contains("\"moon\" is unknown"), "{class}");
    assert!(refusal("/schema", json!("cema-problem/2")).contains("cema-problem/2"));
}

#[test]
fn caps_that_leave_too_few_places_name_who_competes() {
    let mut file = example();
    file["legal"] = json!([[true, true], [true, false], [true, false]]);
    file["destinations"][0]["cap"] = json!(1);
    let message = read(&file).unwrap_err();
    let want = "2 requests, request 2 among them, may only go to a/m, where the caps leave 1 places; raise a cap \
                or split the batch";
    assert_eq!(message, want);
    file["destinations"][0]["cap"] = json!(2);
    assert!(read(&file).is_ok());
    file["destinations"][0]["cap"] = json!(-1);
    assert!(read(&file).is_err());
}

#[test]
fn what_is_not_the_format_is_refused_with_its_place() {
    let mut file = example();
    file["surprise"] = json!(1);
    assert!(read(&file).unwrap_err().contains("unknown field `surprise`"));
    let text = example().to_string().replace("[0.1,0.3]", "[NaN,0.3]");
    let message = from_reader(text.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("column") && message.contains("JSON has no NaN"), "{message}");
    assert!(refusal("/energy_j/0/0", json!("much")).contains("invalid type: string"));
    assert!(from_reader(&b""[..]).is_err());
}

#[test]
fn empty_and_oversized_problems_are_refused() {
    let mut file = example();
    for table in ["quality_loss", "cost_usd", "energy_j", "service_s"] {
        file[table] = json!([]);
    }
    assert_eq!(read(&file).unwrap_err(), "the problem has no requests");
    assert_eq!(refusal("/destinations", json!([])), "the problem has no destinations");
    let row = format!("[{}1]", "1,".repeat(CELLS_MAX / 1024));
    let table = format!("[{}]", vec![row; 1024].join(","));
    let text = example().to_string().replace("[[1.0,0.5],[1.0,0.5],[1.0,0.5]]", &table);
    let message = from_reader(text.as_bytes()).unwrap_err().to_string();
    assert!(message.contains("more than 4194304 cells"), "{message}");
}
