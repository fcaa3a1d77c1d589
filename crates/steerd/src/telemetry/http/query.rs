//! The parameters of a request's target, as browsers and curl encode them (URL Standard,
//! application/x-www-form-urlencoded).

/// The value of the only parameter of this name, decoded; `None`: it is not there, or not UTF-8.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut values = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (Some(value), None) => decoded(value),
        _ => None,
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let packet = |query| parameter(query, "packet");
        assert_eq!(
            packet("packet=src%3D10.0.0.1%2cprotocol%3Dtcp").as_deref(),
            Some("src=10.0.0.1,protocol=tcp")
        );
        assert_eq!(
            packet("a=1&packet=dst=::1,tcp_flags=syn%2Back&b").as_deref(),
            Some("dst=::1,tcp_flags=syn+ack")
        );
        assert_eq!(packet("packet=a+b").as_deref(), Some("a b"));
        assert_eq!(packet("packet=").as_deref(), Some(""));
        for bad in ["", "packe=1", "packet=%", "packet=%4", "packet=%gg", "packet=%ff", "packet=1&packet=2"] {
            assert_eq!(packet(bad), None, "{bad}");
        }
    }
}
