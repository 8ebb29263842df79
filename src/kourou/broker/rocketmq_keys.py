"""All keys of RocketMQ's broker.conf, and those that Kourou refuses.

A key that RocketMQ has and Kourou does not serve causes a warning. A key in `REFUSED_KEYS` with a
value that is not harmless stops the start; one without any effect has its own reason in the
warning.

Source: the setters of BrokerIdentity, BrokerConfig, MessageStoreConfig, NettyServerConfig,
NettyClientConfig and AuthConfig, which BrokerStartup fills from the file; Apache RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.settings import Refusal

ROCKETMQ_KEYS: Final = frozenset(
    """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable
    accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond aclEnable adminBrokerThreadPoolNums
    adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet allowRecallWhenBrokerNotWriteable
    appendAckAsync appendCkAsync appendTopicForTimerDeleteKey asyncLearner asyncSendEnable
    authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
    authenticationStrategy authenticationWhitelist authorizationEnabled
    authorizationMetadataProvider authorizationProvider authorizationStrategy authorizationWhitelist
    autoCreateSubscriptionGroup autoCreateTopicEnable autoDeleteUnusedStats
    autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bindAddress
    bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
    broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerClusterName brokerConfigPath
    brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval brokerId brokerIP1
    brokerIP2 brokerName brokerNotActiveTimeoutMillis brokerPermission brokerRole brokerTopicEnable
    cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval checkCommitLogOffsetOnRecover
    checkCRCOnRecover checkSyncStateSetPeriod cleanFileForciblyEnable cleanOfflineBrokerInterval
    cleanResourceInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
    clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientManagerThreadPoolQueueCapacity
    clientManageThreadPoolNums clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
    clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads clusterName clusterTopicEnable
    coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable combineAssignOffsetCQType
    combineCQEnableCheckSelf combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles
    combineCQPreferCQType combineCQUseRocksdbForLmq commercialBaseCount commercialSizePerMsg
    commitCommitLogLeastPages commitCommitLogThoroughInterval commitIntervalCommitLog
    commitLogForceSwapMapInterval commitLogRecoverMaxNum commitLogSwapMapInterval
    commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum compatibleWithOldNameSrv compressedRegister
    configBlackList configManagerVersion configName connectTimeoutMillis consumerFallbehindThreshold
    consumerManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
    consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
    correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dataReadAheadEnable
    debugLockEnable defaultMessageRequestMode defaultPopShareQueueNum defaultQueryMaxNum
    defaultTopicQueueNums delayOffsetUpdateVersionStep deleteCommitLogFilesInterval
    deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen destroyMapedFileIntervalForcibly
    disableCallbackExecutor disableConsumeIfConsumerReadSlowly disableNettyWorkerGroup
    disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
    dLegerGroup dLegerPeers dLegerSelfId duplicationEnable enableAcceleratedRecovery
    enableAsyncReput enableAutoInSyncReplicas enableBatchPush enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
    enableCompaction enableConnectionMetrics enableConsumeQueueExt enableControllerMode
    enableCreateSysGroup enabledAppendPropCRC enableDetailStat enableDLegerCommitLog
    enableFastChannelEventProcess enableLagAndDlqMetrics enableLiteEventMode enableLitePopLog
    enableLmq enableLmqQuota enableLmqStats enableLogConsumeQueueRepeatedlyBuildWhenRecover
    enableMessageStoreMetrics enableMixedMessageType enableMultiDispatch enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
    enablePropertyFilter enableReconnectForGoAway enableRegisterProducer enableRemoteEscape
    enableRemotingMetrics enableRequestMetrics enableRetryTopicV2 enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enableShutdownGracefully enableSingleTopicRegister enableSkipLongAwaitingAck
    enableSlaveActingMaster enableSplitMetadata enableSplitRegistration enableStatsMetrics
    enableTransactionMetrics endTransactionPoolQueueCapacity endTransactionThreadPoolNums
    estimateAccumulation expectConsumerNumUseFilter fastFailIfNoBufferInStorePool
    fetchControllerAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup
    fetchNamesrvAddrInterval fileReservedTime filterDataCleanTimeSpan filterSupportRetry
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval flushDelayOffsetInterval flushDiskType flushIntervalCommitLog
    flushIntervalConsumeQueue flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC
    forwardTimeout globalColdReadThreshold haFlowControlEnable haHousekeepingInterval haListenPort
    haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval
    haTransferBatchSize heartbeatThreadPoolNums heartbeatThreadPoolQueueCapacity highSpeedMode
    inBrokerContainer indexFileReadEnable indexFileWriteEnable indexRocksDBEnable
    initAuthenticationUser initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials
    inSyncReplicas isBrokerContainer isInBrokerContainer isolateLogEnable isScanAvailableNameSrv
    iteratorWhenUseRocksdbConsumeQueue listenPort liteEventCheckInterval
    liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
    liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable
    liteLagLatencyTopK litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills
    liteTtlCheckInterval loadBalancePollNameServerInterval loadBalanceProcessorThreadPoolNums
    loadBalanceThreadPoolQueueCapacity lockInStrictMode logicalDiskSpaceCleanForciblyThreshold
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    longPollingEnable mappedFileSizeCommitLog mappedFileSizeConsumeQueue
    mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable
    mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxClientEventCount maxConsumeQueueScan maxErrorRateOfBloomFilter
    maxFilterMessageSize maxHashSlotNum maxHaTransferByteInSecond maxIndexNum
    maxLiteSubscriptionCount maxLmqConsumeQueueNum maxMessageFilterNumForNotification maxMessageSize
    maxMsgsNumBatch maxOffsetMapSize maxPopPollingSize maxReconnectIntervalTimeSeconds
    maxRecoveryCommitlogFiles maxRocksDBIndexQueryDays maxSlaveResendLength
    maxStatsIdleTimeInMinutes maxTopicLength maxTransferBytesOnMessageInDisk
    maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk
    maxTransferCountOnMessageInMemory memTableFlushIntervalMs messageDelayLevel messageIndexEnable
    messageIndexSafe messageStorePlugIn metricGrpcExporterIntervalInMills
    metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsExportBatchMaxDataPoints metricsExporterType metricsGrpcExporterHeader
    metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit
    metricsPromExporterHost metricsPromExporterPort migrateAuthFromV1Enabled minInSyncReplicas
    minLiteTTl msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable offsetCheckInSlave
    osPageCacheBusyTimeOutMills persistConsumerOffsetIncrementally popCkMaxBufferSize
    popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
    popFromRetryProbability popFromRetryProbabilityForPriority popInflightMessageThreshold
    popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
    popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes
    popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent preferredLeaderId printChannelGroups
    printChannelGroupsMinNum priorityOrderAsc processReplyMessageThreadPoolNums
    pullBatchMaxMessageCount pullMessageThreadPoolNums pullThreadPoolQueueCapacity
    putConsumeQueueDataByFileChannel putMessageFutureThreadPoolNums putMessageTimeout
    putMsgIndexHightWater putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity readOnlyCommitLogStorePaths readUnCommitted
    realTimeNotifyConsumerChange realTimePersistRocksDBConfig recallMessageEnable
    recheckReputOffsetFromCq recoverConcurrently recoverThreadPoolNums redeleteHangedFileInterval
    regionId registerBrokerTimeoutMills registerNameServerPeriod rejectPullConsumerEnable
    rejectTransactionMessage replicasPerDiskPartition replyThreadPoolQueueCapacity
    retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum
    reviveScanTime rocketmqHome rocksdbCompressionType rocksdbCQDoubleWriteEnable
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scanAvailableNameSrv scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable sendHeartbeatTimeoutMillis
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable
    serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable
    serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize
    serverWorkerThreads sharedByteBufferNum shortPollingTimeMills shutdownWaitTimeSeconds
    skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable slaveTimeout socksProxyConfig
    spinLockCollisionRetreatOptimalDegree splitMetadataSize splitRegistrationSize
    startAcceptSendRequestTimeStamp statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond
    statefulAuthorizationCacheMaxNum statRocksDBCQIntervalSec storePathBrokerIdentity
    storePathCommitLog storePathDLedgerCommitLog storePathEpochFile storePathRootDir
    storeReplyMessageEnable storeType subscriptionExpiredTimeout syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen timerColdDataCheckIntervalMs
    timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor
    timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum
    timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs
    timerProgressLogIntervalMs timerPutMessageThreadNum timerRecallToTimelineEnable
    timerRecallToTimeWheelEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
    timerReputServiceQueueCapacity timerRocksDBEnable timerRocksDBPrecisionMs
    timerRocksDBRollIntervalHours timerRocksDBRollMaxTps timerRocksDBRollRangeHours
    timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps timerRollWindowSlot timerSkipUnknownError
    timerStopDequeue timerStopEnqueue timerWarmEnable timerWheelEnable timerWheelSnapshotFlush
    timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas traceOn traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity
    transactionMetricFlushInterval transactionOpBatchInterval transactionOpMsgMaxSize
    transactionTimeOut transferMsgByHeap transientStorePoolEnable transientStorePoolSize
    transRocksDBEnable transWriteOriginTransHalfEnable travelCqFileNumWhenGetMessage
    updateNameServerAddrPeriod useABSLock useEpollNativeSelector useMessageFilterForNotification
    usePIDColdCtrStrategy userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    useReentrantLockWhenPutMessage useSeparateRetryQueue useSeparateStorePathForRocksdbCQ
    useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription useTLS
    validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue
    waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue
    waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue wakeCommitWhenPutMessage
    wakeFlushWhenPutMessage warmMapedFileEnable writeBufferHighWaterMark writeBufferLowWaterMark
    writeWithoutMmap
    """.split()  # noqa: SIM905  # as a list it would be one line a key
)
"""All keys of RocketMQ, served by Kourou or not."""

_FALSE: Final = frozenset({"", "false"})
_TRUE: Final = frozenset({"", "true"})
_EMPTY: Final = frozenset({""})
_NO_ACCESS_CONTROL: Final = (
    "Kourou does not have access control yet: every client could read, write and delete every "
    "topic. Remove the key, and let only trusted clients reach the port (listen, a firewall, TLS "
    "with client certificates)"
)
_NO_REPLICATION: Final = (
    "Kourou replicates by RocketMQ's classic protocol only, without failover: no slave would "
    "become master, and no set of replicas would be kept. Remove the key; brokerRole, "
    "inSyncReplicas and slaveTimeout are served"
)
_OTHER_FILES: Final = (
    "Kourou uses RocketMQ's default files and does not read RocksDB: data that was stored with "
    "this option would be missing. Remove the key only for a store that never had it on"
)
_NO_KV_STORE: Final = (
    "Kourou keeps pops in the log, and does not read RocksDB: messages that were in flight with "
    "this option would be missing. Export them with mqadmin exportPopRecord while the Java broker "
    "runs, then remove the key"
)
_ALWAYS_STORED: Final = (
    "Kourou answers pops and acks when they are stored, so that no kill brings back what was "
    "acknowledged. Remove the key"
)
_ONLY_KV_STORE: Final = "it has an effect only with popConsumerKVServiceEnable, which is refused"
_NO_POLLING: Final = (
    "Kourou makes messages visible again when their invisible time ends, without an interval"
)
_FEW_HOLDS: Final = (
    "Kourou limits held pops by maxPopPollingSize alone, and forgets a group with its last one"
)

_POP_KEYS: Final[Mapping[str, Refusal]] = {
    "appendAckAsync": Refusal(_FALSE, _ALWAYS_STORED),
    "appendCkAsync": Refusal(_FALSE, _ALWAYS_STORED),
    "enableLitePopLog": Refusal(None, "Kourou does not serve light pops"),
    "enableNotifyBeforePopCalculateLag": Refusal(
        None, "Kourou computes the lag from offsets, and held pops miss no message"
    ),
    "enablePopBatchAck": Refusal(
        None, "Kourou stores the acks of a buffered checkpoint within it, and others together"
    ),
    "enablePopLog": Refusal(None, "Kourou has no log of single pops: trace the messages instead"),
    "enableSkipLongAwaitingAck": Refusal(
        _FALSE,
        "Kourou's timer delivers checkpoints before their acks: an ack without a checkpoint has "
        "none. Remove the key",
    ),
    "popConsumerFSServiceInit": Refusal(
        _TRUE,
        "Kourou keeps pops in the log: without this service messages that are not acknowledged "
        "would not be delivered again. Remove the key",
    ),
    "popConsumerKVServiceEnable": Refusal(_FALSE, _NO_KV_STORE),
    "popConsumerKVServiceInit": Refusal(_FALSE, _NO_KV_STORE),
    "popConsumerKVServiceLog": Refusal(None, _ONLY_KV_STORE),
    "popLongPollingForceNotifyInterval": Refusal(
        None, "in Kourou each message that a held pop wants ends its hold"
    ),
    "popPollingMapExpireTimeSeconds": Refusal(None, _FEW_HOLDS),
    "popPollingMapSize": Refusal(None, _FEW_HOLDS),
    "popReviveConcurrency": Refusal(None, _ONLY_KV_STORE),
    "popReviveMaxAttemptTimes": Refusal(None, _ONLY_KV_STORE),
    "popReviveMaxReturnSizePerRead": Refusal(None, _ONLY_KV_STORE),
    "popReviveSkipIfGroupAbsent": Refusal(None, _ONLY_KV_STORE),
    "reviveAckWaitMs": Refusal(
        None, "it has an effect only with enableSkipLongAwaitingAck, which is refused"
    ),
    "reviveInterval": Refusal(None, _NO_POLLING),
    "reviveMaxSlow": Refusal(None, _NO_POLLING),
    "reviveScanTime": Refusal(None, _NO_POLLING),
}
"""Keys of pop consumption."""

REFUSED_KEYS: Final[Mapping[str, Refusal]] = {
    **_POP_KEYS,
    "aclEnable": Refusal(_FALSE, _NO_ACCESS_CONTROL),
    "authenticationEnabled": Refusal(_FALSE, _NO_ACCESS_CONTROL),
    "authorizationEnabled": Refusal(_FALSE, _NO_ACCESS_CONTROL),
    "duplicationEnable": Refusal(_FALSE, _NO_REPLICATION),
    "enableDLegerCommitLog": Refusal(_FALSE, _NO_REPLICATION),
    "configManagerVersion": Refusal(frozenset({"", "v1"}), _OTHER_FILES),
    "storeType": Refusal(frozenset({"", "default"}), _OTHER_FILES),
    "timerRocksDBEnable": Refusal(_FALSE, _OTHER_FILES),
    "transRocksDBEnable": Refusal(_FALSE, _OTHER_FILES),
    "messageStorePlugIn": Refusal(
        _EMPTY,
        "Kourou runs no store plug-ins: messages that a plug-in holds, such as a tiered store, "
        "would be missing. Remove the key only for a store that never had a plug-in",
    ),
    "readOnlyCommitLogStorePaths": Refusal(
        _EMPTY,
        "Kourou reads one commit log: messages below these paths would be missing. Move their "
        "files into the commit log's directory, or wait until they have expired",
    ),
    "fetchNamesrvAddrByAddressServer": Refusal(
        _FALSE,
        "Kourou does not ask address servers: the broker would not join its cluster. Name the "
        "name servers in namesrvAddr",
    ),
    "fetchNameSrvAddrByDnsLookup": Refusal(
        _FALSE,
        "Kourou does not look up name servers: the broker would not join its cluster. Name them "
        "in namesrvAddr",
    ),
    "useTLS": Refusal(
        _FALSE, "Kourou switches TLS to name servers on by tls.enable = true: use that key"
    ),
}
"""Keys that are not served and must not be ignored: the user would rely on protection, replicas or
data that do not exist. Any value other than a harmless one stops the start."""
