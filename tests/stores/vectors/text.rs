//! JSON as people read it: what fits into a line is one, and fields are in the order in which records are described.

use serde_json::Value;

const WIDTH: usize = 118;

/// The order of fields. Other fields come behind, by their names.
const ORDER: &str = "name before request after outcome terms holder waiter record lease caller by reason token tokens \
    version owner limit ttl grace group metadata wait wait_ttl queue_limit refreshes holders queue handover history at \
    since last_seen expires_at";

/// A value as text, behind so many spaces.
pub(crate) fn text(value: &Value, indent: usize) -> String {
    let line = one_line(value);
    if indent + line.len() <= WIDTH && !is_case(value) {
        return line;
    }
    let (space, end) = (" ".repeat(indent + 2), " ".repeat(indent));
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| format!("{space}{}", text(item, indent + 2))).collect();
            format!("[\n{}\n{end}]", items.join(",\n"))
        }
        Value::Object(_) => {
            let field = |(name, value): (&str, &Value)| format!("{space}\"{name}\": {}", text(value, indent + 2));
            format!("{{\n{}\n{end}}}", fields(value).into_iter().map(field).collect::<Vec<_>>().join(",\n"))
        }
        _ => line,
    }
}

/// A case has a line for each field.
fn is_case(value: &Value) -> bool {
    value.get("name").is_some()
}

fn one_line(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        Value::Object(of) if of.is_empty() => "{}".into(),
        Value::Object(_) => {
            let field = |(name, value): (&str, &Value)| format!("\"{name}\": {}", one_line(value));
            format!("{{ {} }}", fields(value).into_iter().map(field).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn fields(value: &Value) -> Vec<(&str, &Value)> {
    let rank = |name: &str| ORDER.split(' ').position(|known| known == name).unwrap_or(ORDER.len());
    let of = value.as_object().into_iter().flatten();
    let mut fields: Vec<_> = of.map(|(name, value)| (name.as_str(), value)).collect();
    fields.sort_by_key(|(name, _)| (rank(name), *name));
    fields
}
