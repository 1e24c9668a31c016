//! What executors that stand between the engine and a real one leave to it.

/// The methods of [`Executor`](crate::device::Executor) about state at rest, left to the field `inner`; `but` leaves
/// out those named.
macro_rules! delegate_state {
    () => {
        delegate_state!(but rewind);

        fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
            self.inner.rewind(flow, tokens)
        }
    };
    (but rewind) => {
        delegate_state!(but rewind, predict);

        fn predict(
            &mut self,
            spans: &[crate::device::HeadSpan<'_>],
        ) -> Result<crate::device::Predicted, DeviceError> {
            self.inner.predict(spans)
        }
    };
    (but rewind, predict) => {
        fn facts(&self) -> &ExecutorFacts {
            self.inner.facts()
        }

        fn page_end(&self, page: PageId) -> Option<Vec<f32>> {
            self.inner.page_end(page)
        }

        fn exported_bytes(&self) -> (usize, usize) {
            self.inner.exported_bytes()
        }

        fn export_page(&self, page: PageId) -> Result<Vec<u8>, DeviceError> {
            self.inner.export_page(page)
        }

        fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
            self.inner.import_page(page, bytes)
        }

        fn export_slot(&self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
            self.inner.export_slot(slot)
        }

        fn import_slot(&mut self, slot: SlotId, position: usize, bytes: &[u8]) -> Result<(), DeviceError> {
            self.inner.import_slot(slot, position, bytes)
        }

        fn page_digest(&self, page: PageId, tokens: usize) -> [u8; 32] {
            self.inner.page_digest(page, tokens)
        }

        fn slot_digest(&self, slot: SlotId) -> [u8; 32] {
            self.inner.slot_digest(slot)
        }
    };
}
