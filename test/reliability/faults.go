package main

// fault is a fault that users of another system met, and what shows that it is
// not one of ours: tests that are named after the behaviour, or why it cannot
// come up here.
type fault struct {
	kind, name string
	text       string   // the situation and the right outcome
	tests      []string // "package TestName"
	why        string   // it does not apply, because …
}

const (
	eng    = "internal/engine "
	life   = "internal/lifecycle "
	work   = "worker "
	end    = "test/e2e "
	stor   = "internal/store "
	apis   = "internal/api "
	client = "client "
	sims   = "test/sim TestSeeds"
	storms = "test/chaos TestNothingIsLostInASmallStorm"
)

var faults = []fault{
	{"lease", "lost-lease-record", "the record of who runs a task is gone: the task is taken back once, never stuck", []string{eng + "TestATaskWhoseSessionIsGoneIsTakenBack", eng + "TestLiveRowsAreRebuiltFromTheRecords"}, ""},
	{"lease", "ghost-readd", "a finished task has left the database while its dead worker is yet to be noticed: no ghost of it appears", []string{eng + "TestNothingComesBackOfAJobThatWasDeleted"}, ""},
	{"lease", "rescue-page", "one dead worker among many long-running live ones is found at once", []string{eng + "TestADeadWorkerAmongManyOldOnesIsFound"}, ""},
	{"lease", "skewed-clocks", "workers' clocks are minutes off, or step: no live lease is taken over, nothing starts early", []string{sims, work + "TestLeaseEndsBeforeTheServerTakesItBack"}, ""},
	{"lease", "poll-at-shutdown", "a worker stops while a fetch is on its way: the task is given back at once", []string{work + "TestLeasesThatArriveWhileDrainingAreGivenBackAtOnce", work + "TestLeasesThatArriveAfterTheirEndAreNotStarted"}, ""},
	{"lease", "claim-batch-poison", "one task of a batch cannot be decoded: it fails visibly, the others run", []string{eng + "TestATaskWhoseInputCannotBeFilledInFailsAlone"}, ""},
	{"lease", "killed-before-first-status", "a run is killed before it reported anything: its steps and inputs are there, and all run", []string{end + "TestKilledServerFinishesTheSameJob"}, ""},
	{"lease", "session-lock-lost", "the database session of a server dies while handlers run: nothing runs twice unfenced", []string{stor + "TestADatabaseThatGoesAwayIsTriedAgain", storms}, ""},
	{"lease", "sigterm-prefetched", "SIGTERM with tasks fetched and not started: they start elsewhere at once, no attempt used up", []string{end + "TestDrainGivesBackAtOnce"}, ""},
	{"lease", "drain-heartbeat", "a drain takes longer than the lease: renewals go on, nothing is duplicated", []string{work + "TestDrainFinishesThenCancelsThenGivesBack"}, ""},
	{"lease", "soft-stop-available", "handlers cancelled by a shutdown: their tasks are ready at once, and not marked as cancelled", []string{end + "TestDrainGivesBackAtOnce", work + "TestDrainFinishesThenCancelsThenGivesBack"}, ""},
	{"lease", "stop-edge-calls", "stopped before the start, twice, or started again: no panic, no hang, and a clear error", []string{work + "TestWorkerSaysWhyItCannotStart"}, ""},

	{"retry", "backoff-overflow", "delays at attempts up to a million and odd factors: monotone, positive, at the cap", []string{life + "TestBackoffIsMonotoneAndBounded", life + "TestBackoffOfOddPoliciesStaysInRange"}, ""},
	{"retry", "attempt-bound", "a handler that always fails is entered exactly max_attempts times", []string{eng + "TestAFailingHandlerIsEnteredMaxAttemptsTimes", life + "TestHandlerIsEnteredExactlyMaxAttemptsTimes"}, ""},
	{"retry", "cause-kept", "errors, then the overall deadline: the end says timed out and carries the last error", []string{eng + "TestAllAttemptsTogetherAreBoundedByScheduleToClose"}, ""},
	{"retry", "timeout-retried", "a timeout with two retries left: three attempts, and the end says timed out", []string{eng + "TestTheServerEndsAnAttemptWhoseWorkerIgnoresItsTimeout"}, ""},
	{"retry", "retry-after-bound", "a handler that always asks for a second more stops at its attempts like any failure", []string{eng + "TestAFailingHandlerIsEnteredMaxAttemptsTimes"}, ""},
	{"retry", "bad-retry-delay", "a negative or absurd delay is refused or bounded with a message; the task stays usable", []string{eng + "TestAnOddRetryDelayLeavesTheTaskUsable", life + "TestADelayAHandlerAsksForIsBounded"}, ""},
	{"retry", "retry-keeps-options", "class, labels, trace, tenant and deadline are the same in every attempt", []string{eng + "TestALaterAttemptHasTheOptionsOfTheFirst"}, ""},
	{"retry", "batch-error-mixup", "three fail in one batch with different messages: each shows its own", []string{eng + "TestEachTaskOfABatchShowsItsOwnError"}, ""},
	{"retry", "poison-no-keep", "a task that kills its workers is a dead letter once, and never comes back by itself", []string{eng + "TestATaskThatKillsItsWorkersIsADeadLetter", eng + "TestAClosedPoisonTaskStaysAway"}, ""},

	{"cancel", "cancel-queued-workers-down", "all workers are down, a waiting task is cancelled: CANCELLED from the call on, and it never runs", []string{eng + "TestACancelNeedsNoWorker"}, ""},
	{"cancel", "cancel-in-backoff", "between attempts a cancel ends the task at once", []string{eng + "TestACancelBetweenAttemptsEndsTheTask"}, ""},
	{"cancel", "kill-waiting-retry", "a job is cancelled while a task waits for its retry: it ends, and the timer does not revive it", []string{eng + "TestARetryThatIsDueAtACancelIsCancelled"}, ""},
	{"cancel", "kill-queued-no-retry", "a queued task with a retry policy is cancelled: final, never retried", []string{eng + "TestACancelNeedsNoWorker"}, ""},
	{"cancel", "cancel-poll-only", "without notifications a cancel still reaches a running handler within a renewal", []string{work + "TestCancellationReachesTheHandlerAndIsAcknowledged", eng + "TestTheWayOfACancelIsVisible"}, ""},
	{"cancel", "child-cancelled-alone", "only the job that a task runs is cancelled: the task fails with a type that says so, and is not tried again", []string{eng + "TestAChildThatDoesNotEndWell"}, ""},
	{"cancel", "cancel-replayed", "the same cancel request once more: the same answer, nothing else touched", []string{eng + "TestTheSameCancelRequestAgainIsAnsweredAndDoesNothing", eng + "TestACancelOfAJobThatIsGoneDoesNotReachTheNextOfItsID"}, ""},
	{"cancel", "pause-holds", "paused while its tasks complete: no new one starts until it is resumed", []string{eng + "TestNothingOfAPausedJobIsClaimed"}, ""},

	{"idempotency", "key-other-payload", "the same key with another body is a typed conflict; the first job is unchanged", []string{eng + "TestIdempotentSubmit"}, ""},
	{"idempotency", "burst-same-key", "many submits of one key at once make one job and equal answers", []string{eng + "TestManySubmitsOfOneKeyMakeOneJob"}, ""},
	{"idempotency", "own-duplicate", "a keyed job that starts late, or is retried, is no duplicate of itself", []string{eng + "TestAKeyedJobIsNoDuplicateOfItself"}, ""},
	{"idempotency", "retry-conflict", "a dead task is replayed that is live again, or whose job is being cancelled: a refusal that names it (a key has one job, so that there is no equal one)", []string{eng + "TestManyAreReplayedAtOnceAndSomeRefused"}, ""},
	{"idempotency", "empty-id", "empty, blank and over-long names and keys are refused at the edge", []string{eng + "TestEmptyBlankAndLongNamesAreRefused"}, ""},

	{"payload", "nan-inf", "odd numbers are kept as they were written; big integers are not rounded", []string{eng + "TestNumbersAreKeptAsWritten"}, ""},
	{"payload", "terminate-oversized", "a job with the largest input, output and error is listed, shown, cancelled, replayed and deleted", []string{eng + "TestTheLargestJobIsOneLikeAnyOther"}, ""},
	{"payload", "odd-error", "an error that cannot be encoded, is empty, or is 10 MB: the task fails with a text, cut with a mark", []string{eng + "TestOddErrorsAreStoredAsText", work + "TestFailuresOfHandlersAreToldAndBounded"}, ""},
	{"payload", "cyclic-input", "input nested 10,000 deep is a clear error at submission", []string{apis + "TestBadInputIsRefusedWithPlaceAndRemedy"}, ""},
	{"payload", "unicode-id", "names of multi-byte characters at the limit are kept whole; the limit counts what the message says", []string{eng + "TestNamesOfMultiByteCharactersAreKeptWhole"}, ""},
	{"payload", "bulk-limit", "a batch over the size, or with one invalid item: the answer says which are in", []string{apis + "TestEveryOperationAnswersAsDescribed", apis + "TestBadInputIsRefusedWithPlaceAndRemedy"}, ""},

	{"timer", "timer-earlier", "a timer that is due sooner is added while a later one waits: it fires on time", []string{eng + "TestATimerThatIsDueSoonerIsNotHeldUpByALaterOne"}, ""},
	{"timer", "timer-reset-by-tick", "something unrelated happens all the time: a limit on silence still ends the attempt", []string{eng + "TestAnAttemptThatMissesItsHeartbeatIsTriedAgain"}, ""},
	{"timer", "timer-cancel-race", "a timer is due at the moment of a cancel: one outcome", []string{eng + "TestARetryThatIsDueAtACancelIsCancelled", sims}, ""},

	{"dag", "empty-fanout-chain", "three fan-outs over nothing, one after the other: they end after what they wait for, the job goes on, the join's rule decides the rest", []string{eng + "TestChainedFanOutsOverNothing"}, ""},
	{"dag", "refan-on-retry", "a fan-out that failed runs again over a shorter list: as many elements as that has, and the old ones count for nothing", []string{eng + "TestARerunExpandsMapsAgain"}, ""},
	{"dag", "unblock-descendants", "a failed task is run again and succeeds: what it kept from running runs, nothing has to be cleared", []string{eng + "TestAReplayUnblocksWhatIsBelow"}, ""},
	{"dag", "exit-handler-on-stop", "a job is stopped: what runs finally runs to its end once, and the job is not final before", []string{eng + "TestWhatRunsAtTheEnd"}, ""},
	{"dag", "param-with-space", "a value with blanks and equals signs is the same in the first attempt, the next and a replay", []string{eng + "TestAParameterWithBlanksAndSigns"}, ""},
	{"dag", "multi-parent", "two tasks wait for one: it runs once, and they after it", []string{eng + "TestATaskThatTwoWaitFor"}, ""},
	{"dag", "crash-after-result", "a worker dies after its result was stored and before it had the answer: the task does not run again, what follows starts once", []string{eng + "TestAWorkerThatDiesAfterItsResult"}, ""},
	{"dag", "fan-in-with-chain", "a member of a fan-in is a chain whose first step fails: what is for failures runs once, the join ends, nothing waits for ever", []string{eng + "TestAFanInWhoseMemberIsAChain"}, ""},
	{"dag", "half-submitted-graph", "a client is killed while it submits a graph: all of it exists or none, and nothing waits for what is not there", []string{eng + "TestAGraphIsSubmittedWholeOrNotAtAll"}, ""},
	{"dag", "group-order", "members of a fan-in end in any order, one is replaced by another: the results are in the order of the members", []string{eng + "TestAFallbackStandsIn", eng + "TestEnoughElementsSucceed"}, ""},
	{"dag", "big-dag", "a large graph of which little is ready: the cost of a step does not depend on its size", []string{eng + "TestASettleTakesAConstantNumberOfStatements", eng + "TestAMapOfAHundredThousandElements"}, ""},
	{"dag", "fanout-all-skipped", "every element of a fan-out was skipped: the join's rule decides, it gets an empty list and not null, the job does not fail", []string{eng + "TestAFanOutWhoseElementsAreAllSkipped"}, ""},

	{"upgrade", "id-derivation-change", "an upgrade between two submits of one key: still one job", []string{eng + "TestARequestHasTheSameFingerprintInEveryVersion"}, ""},
	{"upgrade", "migration-order", "from every released version, with work in every state, to the newest", []string{eng + "TestAnOlderDatabaseIsUpgradedAndItsWorkFinished", stor + "TestServersThatMigrateAtOnceTakeEachStepOnce"}, ""},
	{"upgrade", "migration-under-load", "somebody reads for long what a step must change: nobody queues behind the step", []string{stor + "TestAMigrationLetsOthersThrough"}, ""},
	{"upgrade", "older-binary", "a program older than the schema says so before it touches anything, or runs where the schema says it may", []string{stor + "TestSchemaIsCheckedWithAdvice"}, ""},
}
