"""What is made of records: statistics, figures, reports. Reads records only; knows neither Ray nor
torch.
"""
