//! Values that are the same but for the last bits of their numbers: files travel between machines
//! whose `exp` and `ln` differ there.

use serde::Serialize;
use serde_json::Value;

/// Relative room.
const TOLERANCE: f64 = 1e-9;

/// Whether two values are written alike, up to [`close`] numbers.
pub fn nearly_equal(a: &impl Serialize, b: &impl Serialize, floor: f64) -> bool {
    let value = |of: Result<Value, serde_json::Error>| of.expect("plain data");
    alike(&value(serde_json::to_value(a)), &value(serde_json::to_value(b)), floor)
}

fn alike(a: &Value, b: &Value, floor: f64) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => close(a, b, floor),
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b, floor))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |key, a| b.get(key).is_some_and(|b| alike(a, b, floor));
            a.len() == b.len() && a.iter().all(|(key, a)| same(key, a))
        }
        _ => a == b,
    }
}

/// Whether two numbers differ in their last bits only; smaller ones than `floor` are held to its
/// bits.
pub fn close(a: f64, b: f64, floor: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(floor)
}
