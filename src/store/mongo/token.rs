//! A fencing token in BSON.

use mongodb::bson::Bson;

use crate::types::{
    error::{Error, Result},
    token::FencingToken,
};

impl From<FencingToken> for Bson {
    fn from(token: FencingToken) -> Self {
        Self::Int64(token.into())
    }
}

impl TryFrom<Bson> for FencingToken {
    type Error = Error;

    fn try_from(value: Bson) -> Result<Self> {
        match value {
            Bson::Int64(number) => Ok(number.try_into()?),
            _ => Err(Error::invalid(
                "a fencing token is stored as a 64-bit integer and this is none: store `Lease::token` unchanged",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_bson_and_back_and_nothing_else_does() {
        let token = FencingToken::MAX;
        assert_eq!(Bson::from(token), Bson::Int64((1 << 53) - 1));
        assert_eq!(FencingToken::try_from(Bson::from(token)).unwrap(), token);
        for bad in [Bson::Int64(0), Bson::Int64(-1), Bson::Int32(1), Bson::Double(1.0), Bson::Null] {
            assert!(FencingToken::try_from(bad.clone()).is_err(), "{bad}");
        }
    }
}
