//! What the tests of several modules share.

/// Does not compile if the type is `Send`: then either trait could be meant.
macro_rules! assert_not_send {
    ($type:ty) => {
        const _: fn() = || {
            trait Ambiguous<Which> {
                fn which() {}
            }
            struct ForSend;
            impl<T: ?Sized> Ambiguous<()> for T {}
            impl<T: ?Sized + Send> Ambiguous<ForSend> for T {}
            let _ = <$type as Ambiguous<_>>::which;
        };
    };
}

pub(crate) use assert_not_send;
